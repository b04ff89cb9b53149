"""Surface *scheduler*: which tokens run next. Pure bookkeeping; never imports torch.

Called by: `EngineCore`, in the engine process, from one thread. No call may block. An exception
other than those named here is a fault of the engine and ends all requests.

The core's own scheduler is registered as ``token-budget``. Another one is chosen with
``scheduler_cls``. It may be written from nothing: it then owns every block of the cache but block
0, the null block. Or it changes what goes in and out of the core's, which `SchedulerContext.build`
makes; it then leaves plans and results as they are.

A scheduler is asked for at most ``SchedulerClass.max_in_flight`` plans before it gets the result of
the first; one that is named by module path, for one. Results come in the order of the plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import attrs
import msgspec

from pegboard.api.events import KVEvent
from pegboard.api.kv import KVCacheConfig
from pegboard.api.metrics import PluginMetrics
from pegboard.api.scheduler_class import SchedulerClass
from pegboard.api.step import StepPlan, StepResult
from pegboard.api.views import EngineOutput, EngineRequest

__all__ = ["CacheStats", "Scheduler", "SchedulerClass", "SchedulerContext", "SchedulerStats"]


class CacheStats(msgspec.Struct):
    """Counts since start or the last reset, in tokens and blocks."""

    queried_tokens: int = 0
    """Of prompts that looked into the cache."""
    hit_tokens: int = 0
    evicted_blocks: int = 0
    """Blocks that lost their content to another request."""
    resets: int = 0
    """Since the start; the other counts begin anew with each."""
    external_queried_tokens: int = 0
    """Prompt tokens that a KV connector was asked for, those of the own cache left out."""
    external_hit_tokens: int = 0
    """Of these, those that were loaded."""

    @property
    def hit_rate(self) -> float:
        """Share of the queried tokens that were hits, from 0 to 1; 0 without a query."""
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else 0.0

    def since(self, earlier: CacheStats) -> CacheStats:
        """Counts of the interval from an `earlier` snapshot to this one.

        With a reset in between, the interval begins there. Its `resets` are those inside it.
        """
        begin = earlier if earlier.resets == self.resets else CacheStats(resets=earlier.resets)
        own, old = msgspec.structs.asdict(self), msgspec.structs.asdict(begin)
        return CacheStats(**{name: own[name] - old[name] for name in own})


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
    sleep_level: int = 0
    """Of the engine, which sets it; 0 while it is awake. See `pegboard.api.executor_sleep`."""


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

    def take_events(self) -> list[KVEvent]:
        """What became of the cached content since the last call, in order. Called only while a
        publisher wants events."""
        ...

    def check(self) -> None:
        """Verify every count; raises `AssertionError` naming what is off. Callable between
        steps."""
        ...


@attrs.frozen
class SchedulerContext:
    """What a scheduler is built from."""

    config: Any
    """`pegboard.EngineConfig`, with `max_model_len` decided."""
    cache: KVCacheConfig
    """Groups and number of blocks."""
    build: Callable[[str], Scheduler]
    """Builds another scheduler over the same cache, by its registered name."""
    connected: Any = None
    """With a KV connector, its scheduler half behind a guard: `pegboard.scheduler.guard.Connected`.
    None otherwise, and always for schedulers whose descriptor does not declare ``transfers``."""
    settings: Any = None
    """The plugin's own, see `pegboard.api.hooks.Hooks.pegboard_settings`."""
    metrics: PluginMetrics = attrs.field(factory=PluginMetrics, eq=False, repr=False)
    """The plugin's own namespace of metrics."""
