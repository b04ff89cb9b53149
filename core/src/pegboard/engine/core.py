"""The engine's heart: a scheduler, an executor, and the sentence that joins them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from pegboard.api.connector import StoreEvent
from pegboard.api.events import PublisherStats
from pegboard.api.executor import Executor, Pending
from pegboard.api.executor_sleep import SleepPart
from pegboard.api.late import LateSource
from pegboard.api.scheduler import Scheduler, SchedulerStats
from pegboard.api.step import StepPlan, StepResult
from pegboard.api.views import EngineOutput, EngineRequest
from pegboard.engine.events import EventSink, NullSink
from pegboard.engine.interrupts import InterruptShield
from pegboard.engine.late import NothingLate
from pegboard.engine.sleep import Sleeper
from pegboard.engine.stats import NullStats, StatSink
from pegboard.errors import RequestError
from pegboard.scheduler.guard import Connected

__all__ = ["EngineCore"]


class _Flight(msgspec.Struct, eq=False):
    """A step from its plan to its update."""

    plan: StepPlan
    waits: bool
    """It cannot be sampled before every earlier step is updated."""
    pending: Pending | None = None
    sampled: bool = False


class EngineCore:
    """Steps the scheduler and the executor. Lives in one thread of one process.

    With a depth of 2, for steps n and n + 1::

        host     plan n+1 │ start n+1 │ wait for n ........ │ update n │ plan n+2 │ start n+2 │ …
        device   ....... forward and sample n ............. │ forward and sample n+1 ..........

    With a depth of 1 the host waits for each step before it plans the next.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        events: EventSink | None = None,
        *,
        depth: int = 1,
        late: LateSource | None = None,
        connected: Connected | None = None,
        stats: StatSink | None = None,
    ) -> None:
        """`depth` is the most steps in flight, 1 or 2; `late` makes grammar masks, if there are
        any; `connected` is the KV connector's scheduler half, if there is one, and is closed here;
        so is `stats`, which is told of each step.
        """
        assert 1 <= depth <= 2, "a third step would be started before the second may be sampled"
        self.scheduler = scheduler
        self.executor = executor
        self.depth = depth
        self.overlapped = 0
        """Steps with rows that were started before the result of one with rows was taken."""
        self._events: EventSink = events or NullSink()
        self._late = late or NothingLate()
        self._connected = connected
        self._stats: StatSink = stats or NullStats()
        self._flights: deque[_Flight] = deque()
        """Oldest first."""
        self._told: list[EngineOutput] = []
        """What the caller must still be told."""
        self._sleeper = Sleeper(executor)
        self.shield = InterruptShield()
        """Signal handlers wait while the books are changed."""

    def step(self) -> list[EngineOutput]:
        """Keep the device busy, and return what the oldest step brought for each request.

        An exception from the executor is a fault of the engine, not of a request: the caller ends
        all requests. What a signal handler raises, such as `KeyboardInterrupt`, drops the steps in
        flight and the requests in them; `shield` tells the two apart.
        """
        with self.shield:
            try:
                busy = not self._sleeper.level
                while busy and len(self._flights) < self.depth:
                    busy = self._start()
                if self._flights:
                    self._finish()
                self.shield.deliver()
            except BaseException as error:
                if self.shield.caused(error):
                    self._drop()
                raise
            told, self._told = self._told, []
            return told

    def _start(self) -> bool:
        """Plan a step and start its forward pass; False if it has no rows."""
        plan = self.scheduler.plan()
        flight = _Flight(plan, self._late.planned(plan))
        self.overlapped += bool(plan.rows) and any(f.plan.rows for f in self._flights)
        self._flights.append(flight)
        with self.shield.opened:
            flight.pending = self.executor.execute(plan)
        self._sample()
        return plan.rows > 0

    def _sample(self) -> None:
        """Let each step be sampled whose inputs are known: the oldest, and those that do not
        wait."""
        for age, flight in enumerate(self._flights):
            if flight.pending is not None and not flight.sampled and not (age and flight.waits):
                flight.sampled = True
                late = self._late.inputs(flight.plan)
                with self.shield.opened:
                    flight.pending.sample(late)

    def _finish(self) -> None:
        """Wait for the oldest step and update the books."""
        flight = self._flights[0]
        assert flight.pending is not None, "an unfinished step is given up"
        with self.shield.opened:
            result = flight.pending.result()
        self._update(flight.plan, result)
        self._sample()

    def _update(self, plan: StepPlan, result: StepResult) -> None:
        self._flights.popleft()
        self._told += self.scheduler.update(plan, result)
        self._late.updated(plan, result)
        self._events.publish(self.scheduler)
        self._stats.record(plan, result, self.scheduler)

    def _drop(self) -> None:
        """Give up all unfinished steps; the runner is told everything anew in the next one.

        They may still run. The next one comes after them all the same, since an executor keeps the
        order, so that nothing they write is in its way.
        """
        while self._flights:
            plan = self._flights[0].plan
            failed = dict.fromkeys(plan.slots, "the step was interrupted")
            self._update(plan, StepResult(plan.step_id, [], [], failed=failed))
        self.scheduler.resync()

    def settle(self) -> None:
        """Finish the steps in flight, without planning any; their outputs come with the next
        step."""
        with self.shield:
            try:
                while self._flights:
                    self._finish()
            except BaseException as error:
                if self.shield.caused(error):
                    self._drop()
                raise

    def add(self, request: EngineRequest) -> None:
        """Queue a checked request; see `Scheduler.add`. Raises `RequestError` during sleep."""
        with self.shield:
            self._sleeper.check_awake()
            self.scheduler.add(request)

    def abort(self, ids: Iterable[str]) -> list[EngineOutput]:
        """Drop requests; see `Scheduler.abort`."""
        with self.shield:
            return self.scheduler.abort(ids)

    def finish(self, ids: Iterable[str], reason: str) -> None:
        """End requests whose end was found in the text; see `Scheduler.finish`."""
        with self.shield:
            self.scheduler.finish(ids, reason)

    def has_work(self) -> bool:
        return bool(self._told) or self.scheduler.has_work()

    def stats(self) -> SchedulerStats:
        stats = self.scheduler.stats()
        stats.sleep_level = self._sleeper.level
        return stats

    def reset_prefix_cache(self) -> bool:
        """Finish the steps in flight, then forget all cached blocks; see
        `Scheduler.reset_prefix_cache`."""
        with self.shield:
            self.settle()
            done = self.scheduler.reset_prefix_cache()
            self._events.publish(self.scheduler)
            return done

    @property
    def sleep_level(self) -> int:
        """0 if it is awake."""
        return self._sleeper.level

    def check_sleep(self) -> None:
        """Raise `UnsupportedError`, which names what is missing, if this engine cannot sleep."""
        self._sleeper.check()

    def sleep(self, level: int) -> None:
        """Forget the cache and give memory back; see `pegboard.api.executor_sleep`.

        Transfers of a KV connector end first. Raises `UnsupportedError` if the executor cannot,
        and `RequestError` if there are requests.
        """
        with self.shield:
            self._sleeper.check()
            self.settle()
            if not self._sleeper.level:
                self._clear()
            self._sleeper.sleep(level)

    def _clear(self) -> None:
        stats = self.scheduler.stats()
        if stats.running or stats.waiting:
            count = stats.running + stats.waiting
            raise RequestError(f"{count} requests are not over; an engine sleeps without any")
        while self.scheduler.has_work():
            self._start()
            self._finish()
        if not self.scheduler.reset_prefix_cache():
            raise RequestError("blocks of the cache are in use; an engine sleeps without any")
        self._events.publish(self.scheduler)

    def wake(self, parts: Sequence[SleepPart]) -> bool:
        """Wake up parts that sleep; whether everything is awake then. Raises what
        `SleepingExecutor.wake` does."""
        with self.shield:
            return self._sleeper.wake(parts)

    def kv_event_stats(self) -> PublisherStats:
        """What became of the batches of KV events."""
        return self._events.stats()

    def store_events(self) -> list[StoreEvent]:
        """What came to or left the KV connector's store since the last call."""
        return [] if self._connected is None else self._connected.events()

    def close(self) -> None:
        """Drop the steps in flight, send the KV events that are queued, and release the device."""
        self._flights.clear()
        try:
            self._events.close()
            self._stats.close()
        finally:
            self.executor.close()
            if self._connected is not None:
                self._connected.close()
