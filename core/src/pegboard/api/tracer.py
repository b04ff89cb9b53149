"""Surface *tracer*: one span for each request.

Called by: the front end, wherever that is, as the front half of a stat logger is (see
`pegboard.api.stat_logger_front`): when a request has ended, one call at a time, from several
threads. A call must not block: what is sent is sent beside it, and dropped while nobody takes it.

A tracer is on where the engine option ``otlp_traces_endpoint`` is given, and then it is the only
one on the board; or where the option ``tracer`` names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from pegboard.api._parts import late_exports
from pegboard.api.descriptor import LazyRef, lazy_ref

if TYPE_CHECKING:
    from pegboard.api.tracer_open import RequestTracer, TracerContext

__all__ = ["RequestTracer", "Tracer", "TracerContext"]

if not TYPE_CHECKING:
    __getattr__ = late_exports(__name__, __all__, "tracer_open")


@attrs.frozen
class Tracer:
    """Descriptor of a tracer."""

    name: str
    open: LazyRef = attrs.field(converter=lazy_ref)
    """A callable ``(TracerContext) -> RequestTracer``, called when the engine is ready. Raises
    `ConfigError` for settings that are not allowed."""

    def claims(self) -> tuple[str, ...]:
        return ()
