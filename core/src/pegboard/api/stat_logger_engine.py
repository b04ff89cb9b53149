"""The engine half of a stat logger. Part of `pegboard.api.stat_logger`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import attrs
import msgspec

from pegboard.api.metrics import PluginMetrics

if TYPE_CHECKING:
    from pegboard.api.scheduler import SchedulerStats


__all__ = ["StatLoggerContext", "StatRecorder", "StepStats"]


class StepStats(msgspec.Struct, frozen=True):
    """One step, and the engine after it."""

    time: float
    """Seconds of the engine's monotonic clock."""
    step_id: int
    rows: int
    """Requests in the step."""
    tokens: int
    """Tokens computed."""
    sampled: int
    """Tokens that came out."""
    failed: int
    """Requests that ended with a fault of their own."""
    scheduler: SchedulerStats
    """Requests running and waiting, blocks, preemptions, hits: a snapshot, the logger's to keep."""


@attrs.frozen
class StatLoggerContext:
    """What the engine half of a logger is opened with."""

    model: str
    """As the user named it."""
    rank: int = 0
    """Number of this engine among those that share one configuration."""
    settings: Any = None
    """The plugin's own, see `pegboard.api.hooks.Hooks.pegboard_settings`."""
    metrics: PluginMetrics = attrs.field(factory=PluginMetrics, eq=False, repr=False)
    """The plugin's own namespace of metrics."""


class StatRecorder(Protocol):
    """The engine half of an open logger. Lives as long as its engine."""

    def record(self, stats: StepStats) -> None:
        """Take the figures of a step; must not block. An exception is logged once; the engine goes
        on."""
        ...

    def close(self) -> None:
        """Write what is left, within a second or two. Called once."""
        ...
