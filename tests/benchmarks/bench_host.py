"""What the host does per step beside the device: plan, submit, update, with an executor that
computes nothing.

Run ``python tests/benchmarks/bench_host.py [STEPS]``, or ``make bench-host``. Each number of
running requests is a decode steady state: prompts of 200 to 1,800 tokens, requests that end and are
replaced at random, as a server sees them. Printed are medians per step, in milliseconds: of wall
time over all steps and over the undisturbed ones (before each a fixed piece of Python is timed; on
a machine that others use, only steps beside its best times say something), of processor time with
its tenth percentile, the goal, the 99th percentile, the same without the garbage collector, and
where the time goes.

Growth is printed in processor time and in calls per request and step, which no machine disturbs: if
the calls stay the same and the time does not, the objects of so many requests no longer fit into
the processor's caches. Last, the period of a step of 2 ms with 1 ms added to planning, which
overlap should hide.
"""

from __future__ import annotations

import cProfile
import gc
import io
import pstats
import random
import statistics
import sys
import time
from collections.abc import Callable

from pegboard.api.executor import Pending
from pegboard.api.params import SamplingParams
from pegboard.api.step import StepPlan
from pegboard.api.views import EngineRequest
from pegboard.config.engine import EngineConfig
from pegboard.engine.build import build_core
from pegboard.engine.core import EngineCore
from pegboard.runner.thread import StepThread
from pegboard.testing.null_executor import NullExecutor

GOALS_MS = {1: 0.15, 64: 0.4, 256: 1.5, 1024: 6.0}
"""Per running requests; the last is linear growth from the one before."""
PERIOD_GOAL_MS = 2.5
SHOWN = 15
NOISE = 1.15
"""The fixed work takes at most so many times its least time beside an undisturbed step."""
GREEDY = SamplingParams(temperature=0.0)


class Load:
    """Keeps a number of requests running in one engine."""

    def __init__(self, running: int, *, depth_two: bool = True) -> None:
        self._rng = random.Random(running)
        self._count = self._live = 0
        self.running = running
        config = EngineConfig(
            model="null",
            num_gpu_blocks_override=1 + running * 160,
            max_num_seqs=running,
            max_num_batched_tokens=max(8192, 2 * running),
            async_scheduling=depth_two,
        )
        self.core, _ = build_core(config, NullExecutor(), 2560)
        for _ in range(running):
            self._add(first=True)

    def _add(self, first: bool = False) -> None:
        """One more request; those that are there from the start end at different times."""
        length = self._rng.randrange(200, 1800)
        limit = self._rng.randrange(1, 600) if first else 600
        prompt = [self._rng.randrange(50_000) for _ in range(length)]
        self.core.add(
            EngineRequest(str(self._count), prompt, GREEDY, seed=0, max_tokens=200 + limit)
        )
        self._count += 1
        self._live += 1

    def step(self) -> None:
        for output in self.core.step():
            self._live -= output.finish_reason is not None

    def refill(self) -> None:
        while self._live < self.running:
            self._add()

    def settle(self) -> None:
        """Run until all prompts are computed."""
        while self.core.stats().waiting:
            self.step()
        for _ in range(20):
            self.step()


class Times:
    """Milliseconds of each step, and of a fixed piece of work just before it."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.cpu: list[float] = []
        """Of this thread, which does all the work."""
        self._yardstick: list[float] = []

    def add(self, load: Load) -> None:
        self._yardstick.append(milliseconds(fixed_work))
        begin = time.thread_time()
        self.steps.append(milliseconds(load.step))
        self.cpu.append((time.thread_time() - begin) * 1e3)

    @property
    def worked(self) -> float:
        """Median of processor time."""
        return statistics.median(self.cpu)

    @property
    def least(self) -> float:
        """Tenth percentile of processor time."""
        return sorted(self.cpu)[len(self.cpu) // 10]

    @property
    def median(self) -> float:
        return statistics.median(self.steps)

    @property
    def quiet(self) -> float:
        """Median of the steps that others on the machine hardly disturbed."""
        most = NOISE * min(self._yardstick)
        pairs = zip(self.steps, self._yardstick, strict=True)
        return statistics.median(step for step, fixed in pairs if fixed <= most)

    @property
    def p99(self) -> float:
        return sorted(self.steps)[int(len(self.steps) * 0.99)]


def milliseconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def fixed_work() -> int:
    table = dict.fromkeys(range(200), 1)
    return sum(table[number % 200] for number in range(3000))


def measure(load: Load, steps: int) -> Times:
    times = Times()
    for _ in range(steps):
        load.refill()
        times.add(load)
    return times


def report(running: int, steps: int) -> Times:
    """Two lines per number of requests."""
    load = Load(running)
    load.settle()
    with_gc = measure(load, steps)
    gc.collect()
    gc.disable()
    without = measure(load, steps)
    gc.enable()
    print(
        f"{running:5} running  median {with_gc.median:.3f} ms  undisturbed {with_gc.quiet:.3f} ms "
        f"(goal {GOALS_MS[running]})  {with_gc.quiet / running * 1e3:.2f} us a request  "
        f"p99 {with_gc.p99:.3f}; without gc {without.median:.3f}, {without.quiet:.3f}, "
        f"p99 {without.p99:.3f}\n"
        f"               CPU median {with_gc.worked:.3f} ms, tenth percentile "
        f"{with_gc.least:.3f} ms; {with_gc.worked / running * 1e3:.2f} us a request; "
        f"without gc {without.worked:.3f}"
    )
    return with_gc


def growth(fewer: tuple[int, Times], more: tuple[int, Times]) -> None:
    """How what a request costs per step grows with their number; 1 is linear growth."""
    (few, before), (many, after) = fewer, more
    median = after.worked / before.worked * few / many
    least = after.least / before.least * few / many
    calls = [calls_per_request(count) for count in (few, many)]
    print(
        f"\nper request, from {few} to {many} running: CPU time x {median:.2f} "
        f"(tenth percentiles x {least:.2f}), "
        f"calls {calls[0]:.2f} -> {calls[1]:.2f}"
    )


def calls_per_request(running: int, steps: int = 64) -> float:
    """Function calls of a step for each of its requests; requests that end and come are left
    out."""
    load = Load(running)
    load.settle()
    profiler, calls = cProfile.Profile(), []
    for _ in range(steps):
        load.refill()
        profiler.enable()
        load.step()
        profiler.disable()
        made = sum(entry.callcount for entry in profiler.getstats())
        calls.append(made - sum(calls))
    return statistics.median(calls) / running


def profile(running: int, steps: int) -> str:
    """Where the time goes."""
    load = Load(running)
    load.settle()
    profiler = cProfile.Profile()
    profiler.enable()
    measure(load, steps)
    profiler.disable()
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).strip_dirs().sort_stats("tottime").print_stats(SHOWN)
    return "\n".join(line for line in text.getvalue().splitlines() if line.strip())


class OnThread(NullExecutor):
    """A null executor whose steps take `seconds` on a thread of their own."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self._thread = StepThread(super().execute)

    def execute(self, plan: StepPlan) -> Pending:
        return self._thread.execute(plan)

    def close(self) -> None:
        self._thread.close()


def slow_planning(core: EngineCore, seconds: float) -> None:
    """Add work to each call of `plan`."""
    plan = core.scheduler.plan

    def slow() -> StepPlan:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass
        return plan()

    core.scheduler.plan = slow  # type: ignore[method-assign]


def period(overlap: bool, steps: int = 300) -> float:
    """Median milliseconds from step to step, of one request, with 2 ms on the device."""
    config = EngineConfig(model="null", num_gpu_blocks_override=128, async_scheduling=overlap)
    core, _ = build_core(config, OnThread(0.002), 1024)
    slow_planning(core, 0.001)
    core.add(EngineRequest("a", [1], GREEDY, seed=0, max_tokens=steps))
    times = []
    while core.has_work():
        times.append(milliseconds(core.step))
    core.close()
    return statistics.median(times)


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    found = {running: report(running, steps) for running in GOALS_MS}
    growth((256, found[256]), (1024, found[1024]))
    for running in (1, 256, 1024):
        print(f"\nprofile of {steps} steps at {running} running")
        print(profile(running, steps))
    print(f"\n2 ms on the device, 1 ms added to planning (goal below {PERIOD_GOAL_MS} ms)")
    for overlap in (True, False):
        print(f"overlap {overlap!s:5}  period {period(overlap):.3f} ms")


if __name__ == "__main__":
    main()
