"""Surface *tracer*: one span for each request.

Called by: the front end, wherever that is, as the front half of a stat logger is (see
`pegboard.api.stat_logger_front`): when a request has ended, one call at a time, from several
threads. A call must not block: what is sent is sent beside it, and dropped while nobody takes it.

A tracer is on where the engine option ``otlp_traces_endpoint`` is given, and then it is the only
one on the board; or where the option ``tracer`` names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import attrs

from pegboard.api.descriptor import LazyRef, lazy_ref
from pegboard.api.metrics import PluginMetrics

if TYPE_CHECKING:
    from pegboard.api.stat_logger_front import RequestFacts

__all__ = ["RequestTracer", "Tracer", "TracerContext"]


@attrs.frozen
class TracerContext:
    """What a tracer is opened with."""

    model: str
    """As the user named it."""
    endpoint: str | None = None
    """The engine option ``otlp_traces_endpoint``."""
    settings: Any = None
    """The plugin's own, see `pegboard.api.hooks.Hooks.pegboard_settings`."""
    metrics: PluginMetrics = attrs.field(factory=PluginMetrics, eq=False, repr=False)
    """The plugin's own namespace of metrics."""


class RequestTracer(Protocol):
    """An open tracer. Lives as long as its engine."""

    def finished(self, facts: RequestFacts) -> None:
        """A request has ended. An exception is logged once; the engine goes on."""
        ...

    def close(self) -> None:
        """Send what is left, within a second or two. Called once."""
        ...


@attrs.frozen
class Tracer:
    """Descriptor of a tracer."""

    name: str
    open: LazyRef = attrs.field(converter=lazy_ref)
    """A callable ``(TracerContext) -> RequestTracer``, called when the engine is ready. Raises
    `ConfigError` for settings that are not allowed."""

    def claims(self) -> tuple[str, ...]:
        return ()
