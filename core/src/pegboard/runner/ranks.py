"""The executor of several ranks, each in a process of its own that holds a device."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pegboard.api.executor import ExecutorContext, MemoryProfile, Pending
from pegboard.api.executor_sleep import SleepPart
from pegboard.api.kv import KVCacheConfig, KVSlot
from pegboard.api.step import LateInputs, StepPlan, StepResult
from pegboard.api.transfer import ConnectorLink
from pegboard.config.engine import EngineConfig
from pegboard.config.model import ResolvedModel
from pegboard.errors import UnsupportedError
from pegboard.runner.crew import Crew

if TYPE_CHECKING:
    from pegboard.plugins import Board

__all__ = ["RanksExecutor", "build_ranks"]


class RanksExecutor:
    """`api.executor.Executor` over ``tensor_parallel_size`` ranks on this host.

    Every rank has a `LocalExecutor` and is given every plan. All sample the same tokens, from the
    same logits and seeds, so that no token leaves a device before the next step; rank 0 sends the
    results. The failure of one rank is that of the engine: the others are ended, too.
    """

    max_in_flight = 2

    def __init__(
        self,
        board: Board,
        config: EngineConfig,
        model: ResolvedModel,
        *,
        progress: Callable[[int, int], Any] | None = None,
    ) -> None:
        """As `LocalExecutor`; ranks load the plugins of the board's plan and read the model's files
        themselves."""
        self._config = config
        self._plan = board.plan
        self._progress = progress
        self._crew: Crew | None = None

    def load(self) -> None:
        """Start the ranks and let them load. Raises what `LocalExecutor.load` raises in any of
        them, and `EngineDeadError` if one ends."""
        self._crew = crew = Crew(self._config, self._plan)
        weakref.finalize(self, crew.close)
        crew.ask("load", progress=self._progress)

    def kv_slots(self) -> tuple[KVSlot, ...]:
        """Of one rank: it has its share of the heads."""
        slots: tuple[KVSlot, ...] = self._ready().ask("kv_slots")[0]
        return slots

    def profile(self) -> MemoryProfile:
        """Of the neediest rank in every respect."""
        found: list[MemoryProfile] = self._ready().ask("profile")
        limits = [one.cache_limit for one in found if one.cache_limit is not None]
        return MemoryProfile(
            total=min(one.total for one in found),
            free=min(one.free for one in found),
            weights=max(one.weights for one in found),
            peak_activations=max(one.peak_activations for one in found),
            cache_limit=min(limits, default=None),
        )

    def allocate(self, cache: KVCacheConfig) -> None:
        self._ready().ask("allocate", cache)

    def warm_up(self) -> None:
        self._ready().ask("warm_up")

    def execute(self, plan: StepPlan) -> Pending:
        """Send the plan to all ranks; returns at once."""
        crew = self._ready()
        crew.plan(plan)
        return _RanksStep(crew, plan.step_id)

    def connect(self) -> ConnectorLink:
        """Refused, as `EngineConfig` does."""
        raise UnsupportedError("KV connectors do not serve several ranks")

    def sleep_problem(self) -> str | None:
        """That of any rank."""
        found: list[str | None] = self._ready().ask("sleep_problem")
        return next((problem for problem in found if problem is not None), None)

    def sleep(self, level: int) -> None:
        self._ready().ask("sleep", level)

    def wake(self, part: SleepPart) -> None:
        """A rank that cannot wake up ends all of them."""
        self._ready().ask("wake", part)

    def facts(self) -> dict[str, Any]:
        """Those of rank 0, and the ids of the ranks' processes."""
        crew = self._ready()
        facts: dict[str, Any] = crew.ask("facts")[0]
        return {**facts, "rank_processes": crew.processes()}

    def close(self) -> None:
        """Let the ranks end; one that does not is ended."""
        if self._crew is not None:
            self._crew.close()

    def _ready(self) -> Crew:
        assert self._crew is not None, "load() comes first"
        return self._crew


class _RanksStep:
    """`api.executor.Pending` of a plan that all ranks were given."""

    def __init__(self, crew: Crew, step_id: int) -> None:
        self._crew = crew
        self._step_id = step_id

    def sample(self, late: LateInputs) -> None:
        assert late.step_id == self._step_id, (late.step_id, self._step_id)
        self._crew.sample(late)

    def result(self) -> StepResult:
        return self._crew.result(self._step_id)


def build_ranks(ctx: ExecutorContext) -> RanksExecutor:
    """Entry of the core's descriptor ``ranks``."""
    return RanksExecutor(ctx.board, ctx.config, ctx.model, progress=ctx.progress)
