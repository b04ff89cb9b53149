"""Surface *stat_logger*: who is told what the engine does, and what becomes of requests.

Chosen with the engine option ``stat_loggers``, a list of names; where none is given, an engine that
serves (`pegboard.AsyncLLM`) has those that are on by default, a `pegboard.LLM` none. Without a
logger no figures are made.

A logger has one half or both. The engine half is called by `EngineCore`, in the engine process,
from its one thread, after each step that had rows. The front half sees requests as users see them,
see `pegboard.api.stat_logger_front`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import attrs
import msgspec

from pegboard.api.descriptor import LazyRef, lazy_ref
from pegboard.api.metrics import PluginMetrics
from pegboard.errors import PluginError

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


def _optional_ref(given: LazyRef | str | None) -> LazyRef | None:
    return None if given is None else lazy_ref(given)


@attrs.frozen
class StatLogger:
    """Descriptor of a stat logger. Raises `PluginError` if it has no half at all."""

    name: str
    open: LazyRef | None = attrs.field(default=None, converter=_optional_ref)
    """The engine half: a callable ``(StatLoggerContext) -> StatRecorder``, called before the model
    is loaded. Raises `ConfigError` for settings that are not allowed. None: there is none."""
    observe: LazyRef | None = attrs.field(default=None, converter=_optional_ref)
    """The front half: a callable ``(FrontContext) -> FrontRecorder``, called when the engine is
    ready. None: there is none."""
    default: bool = False
    """On where an engine serves and `stat_loggers` is not given. Its plugin must load in the front
    end."""

    def __attrs_post_init__(self) -> None:
        if self.open is None and self.observe is None:
            raise PluginError(
                f"stat logger {self.name!r} needs open, observe or both, to be told anything"
            )

    def claims(self) -> tuple[str, ...]:
        return ()
