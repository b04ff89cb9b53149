"""Surface *scheduler*: which tokens run next. Pure bookkeeping; never imports torch.

Called by: `EngineCore`, in the engine process, from one thread. No call may block.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from pegboard.api.step import StepPlan, StepResult
from pegboard.api.views import EngineOutput, EngineRequest

__all__ = ["CacheStats", "Scheduler", "SchedulerStats"]


class CacheStats(msgspec.Struct):
    """Counts since start or the last reset, in tokens and blocks."""

    queried_tokens: int = 0
    hit_tokens: int = 0
    evicted_blocks: int = 0
    external_queried_tokens: int = 0
    """Prompt tokens that a KV connector was asked for, those of the own cache left out."""
    external_hit_tokens: int = 0
    """Of these, those that were loaded."""


class SchedulerStats(msgspec.Struct):
    """A snapshot for logs and metrics."""

    running: int = 0
    waiting: int = 0
    used_blocks: int = 0
    total_blocks: int = 0
    preemptions: int = 0
    cache: CacheStats = msgspec.field(default_factory=CacheStats)
    connector: dict[str, float] = msgspec.field(default_factory=dict)
    """What the KV connector counts, by its own names."""


class Scheduler(Protocol):
    """Plans steps and takes their results."""

    def add(self, request: EngineRequest) -> None:
        """Queue a request.

        Raises `RequestError` (field ``request_id``) if a live request has this id, and
        `ResourceError` if the request can never fit the cache.
        """
        ...

    def abort(self, ids: Iterable[str]) -> list[EngineOutput]:
        """Drop requests. Unknown and finished ids are ignored. Returns a last output for each
        dropped one."""
        ...

    def finish(self, ids: Iterable[str], reason: str) -> None:
        """End requests whose end was found outside (a stop string): no output follows, their
        blocks may be cached."""
        ...

    def plan(self) -> StepPlan:
        """The next step. May be empty of rows; if it is idle too (`StepPlan.idle`), it changes
        nothing and needs no update."""
        ...

    def update(self, plan: StepPlan, result: StepResult) -> list[EngineOutput]:
        """Take the result of `plan`; outputs in row order."""
        ...

    def resync(self) -> None:
        """Restate all running requests (`StepPlan.resync`) as soon as no step is in flight."""
        ...

    def has_work(self) -> bool: ...

    def stats(self) -> SchedulerStats: ...

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; False if a request still uses some."""
        ...

    def check(self) -> None:
        """Verify every count; raises `AssertionError` naming what is off. Callable between
        steps."""
        ...
