"""An open tracer, and what it is opened with. Part of `pegboard.api.tracer`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import attrs

from pegboard.api.metrics import PluginMetrics

if TYPE_CHECKING:
    from pegboard.api.stat_logger_front import RequestFacts


__all__ = ["RequestTracer", "TracerContext"]


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
