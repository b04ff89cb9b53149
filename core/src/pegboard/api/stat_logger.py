"""Surface *stat_logger*: who is told, step by step, what the engine does.

Chosen with the engine option ``stat_loggers``, a list of names. Called by: `EngineCore`, in the
engine process, from its one thread, after each step that had rows. Without a logger no figures are
made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import attrs
import msgspec

from pegboard.api.descriptor import LazyRef, lazy_ref
from pegboard.api.metrics import PluginMetrics

if TYPE_CHECKING:
    from pegboard.api.scheduler import SchedulerStats

__all__ = ["StatLogger", "StatLoggerContext", "StatRecorder", "StepStats"]


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
    """What a logger is opened with."""

    model: str
    """As the user named it."""
    rank: int = 0
    """Number of this engine among those that share one configuration."""
    settings: Any = None
    """The plugin's own, see `pegboard.api.hooks.Hooks.pegboard_settings`."""
    metrics: PluginMetrics = attrs.field(factory=PluginMetrics, eq=False, repr=False)
    """The plugin's own namespace of metrics."""


class StatRecorder(Protocol):
    """An open logger. Lives as long as its engine."""

    def record(self, stats: StepStats) -> None:
        """Take the figures of a step; must not block. An exception is logged once; the engine goes
        on."""
        ...

    def close(self) -> None:
        """Write what is left, within a second or two. Called once."""
        ...


@attrs.frozen
class StatLogger:
    """Descriptor of a stat logger."""

    name: str
    open: LazyRef = attrs.field(converter=lazy_ref)
    """A callable ``(StatLoggerContext) -> StatRecorder``, called before the model is loaded. Raises
    `ConfigError` for settings that are not allowed."""

    def claims(self) -> tuple[str, ...]:
        return ()
