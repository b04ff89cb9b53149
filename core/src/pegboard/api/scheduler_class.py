"""The descriptor of surface *scheduler*, apart from its contract: the board imports it at start-up,
when nothing else of `pegboard.api.scheduler` is wanted."""

from __future__ import annotations

import attrs

from pegboard.api.descriptor import LazyRef, lazy_ref

__all__ = ["SchedulerClass"]


@attrs.frozen
class SchedulerClass:
    """Descriptor of a scheduler.

    `build` refers to a callable ``(SchedulerContext) -> Scheduler``, for example the class itself.
    """

    name: str
    build: LazyRef = attrs.field(converter=lazy_ref)
    max_in_flight: int = 1
    """Plans that it can make before the first of them has a result. With 2, steps may overlap
    (``async_scheduling``)."""
    transfers: bool = False
    """Serves ``SchedulerContext.connected``; others are refused together with a KV connector."""

    def claims(self) -> tuple[str, ...]:
        return ()
