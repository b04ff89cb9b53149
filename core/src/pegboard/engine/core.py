"""The engine's heart: a scheduler, an executor, and the sentence that joins them."""

from __future__ import annotations

from collections.abc import Iterable

from pegboard.api.connector import StoreEvent
from pegboard.api.executor import Executor
from pegboard.api.scheduler import Scheduler, SchedulerStats
from pegboard.api.step import LateInputs, StepPlan, StepResult
from pegboard.api.views import EngineOutput, EngineRequest
from pegboard.scheduler.guard import Connected

__all__ = ["EngineCore"]


class EngineCore:
    """Steps the scheduler and the executor. Lives in one thread of one process."""

    def __init__(
        self, scheduler: Scheduler, executor: Executor, *, connected: Connected | None = None
    ) -> None:
        """`connected` is the KV connector's scheduler half, if there is one; it is closed here."""
        self.scheduler = scheduler
        self.executor = executor
        self._connected = connected
        self._dropped: list[EngineOutput] = []
        """Outputs of steps that were given up; the next step returns them."""

    def step(self) -> list[EngineOutput]:
        """Run one step and return what it brought for each request.

        An exception from the executor is a fault of the engine, not of a request: the caller ends
        all requests. An interrupt from the keyboard drops the step and the requests in it.
        """
        plan = self.scheduler.plan()
        try:
            pending = self.executor.execute(plan)
            pending.sample(self._late(plan))
            result = pending.result()
        except KeyboardInterrupt:
            self._drop(plan)
            raise
        dropped, self._dropped = self._dropped, []
        return dropped + self.scheduler.update(plan, result)

    def _drop(self, plan: StepPlan) -> None:
        """Give up an unfinished step; the runner is told everything anew in the next one."""
        failed = dict.fromkeys(plan.slots, "the step was interrupted")
        self._dropped += self.scheduler.update(
            plan, StepResult(plan.step_id, [], [], failed=failed)
        )
        self.scheduler.resync()

    def _late(self, plan: StepPlan) -> LateInputs:
        """Inputs that waited for the previous step's tokens."""
        return LateInputs(step_id=plan.step_id)

    def add(self, request: EngineRequest) -> None:
        """Queue a checked request; see `Scheduler.add`."""
        self.scheduler.add(request)

    def abort(self, ids: Iterable[str]) -> list[EngineOutput]:
        """Drop requests; see `Scheduler.abort`."""
        return self.scheduler.abort(ids)

    def finish(self, ids: Iterable[str], reason: str) -> None:
        """End requests whose end was found in the text; see `Scheduler.finish`."""
        self.scheduler.finish(ids, reason)

    def has_work(self) -> bool:
        return bool(self._dropped) or self.scheduler.has_work()

    def stats(self) -> SchedulerStats:
        return self.scheduler.stats()

    def reset_prefix_cache(self) -> bool:
        return self.scheduler.reset_prefix_cache()

    def store_events(self) -> list[StoreEvent]:
        """What came to or left the KV connector's store since the last call."""
        return [] if self._connected is None else self._connected.events()

    def close(self) -> None:
        """Release the device."""
        self.executor.close()
        if self._connected is not None:
            self._connected.close()
