"""Steps on a thread of their own: order, errors, what a thread must bring along, and overlap."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
import torch

from pegboard import LLM, SamplingParams
from pegboard.api.executor import Pending
from pegboard.api.step import LateInputs, StepPlan, StepResult
from pegboard.config.engine import EngineConfig
from pegboard.engine.build import build_core
from pegboard.runner.thread import StepThread
from pegboard.testing.checkpoints import write_tiny_model
from pegboard.testing.null_executor import NullExecutor
from pegboard.testing.toy_engine import toy_request

TENANT: ContextVar[str] = ContextVar("TENANT", default="nobody")


class Step:
    """A step whose parts are noted, with the thread that ran them."""

    def __init__(self, log: list[str], plan: StepPlan, work: Callable[[], None]) -> None:
        self._log, self._plan = log, plan
        work()
        self._note("start")

    def sample(self, late: LateInputs) -> None:
        self._note("sample")

    def result(self) -> StepResult:
        self._note("result")
        return StepResult(self._plan.step_id, [], [])

    def _note(self, part: str) -> None:
        assert threading.current_thread().name.startswith("pegboard-step")
        self._log.append(f"{part} {self._plan.step_id}")


def empty(step_id: int) -> StepPlan:
    return StepPlan(step_id, [], [], [], [], [])


@pytest.fixture
def log() -> list[str]:
    return []


def make(log: list[str], work: Callable[[], None] = lambda: None) -> StepThread:
    return StepThread(lambda plan: Step(log, plan, work))


def test_work_is_done_in_the_order_given_while_the_caller_goes_on(log: list[str]) -> None:
    gate = threading.Event()
    thread = make(log, gate.wait)  # type: ignore[arg-type]
    first = thread.execute(empty(0))
    first.sample(LateInputs(0))
    second = thread.execute(empty(1))
    second.sample(LateInputs(1))
    assert log == [], "the caller did not wait"
    gate.set()
    assert second.result().step_id == 1
    assert first.result().step_id == 0
    parts = ["start", "sample", "result"]
    assert log == [f"{part} {step}" for step in (0, 1) for part in parts]
    thread.close()


def test_a_failure_is_raised_where_the_result_is_taken(log: list[str]) -> None:
    def fail() -> None:
        raise OSError("no memory")

    thread = make(log, fail)
    pending = thread.execute(empty(0))
    pending.sample(LateInputs(0))
    with pytest.raises(OSError, match="no memory"):
        pending.result()
    thread.close()


def test_closing_waits_for_what_runs_drops_what_is_queued_and_ends_the_thread(
    log: list[str],
) -> None:
    running = threading.Event()

    def work() -> None:
        running.set()
        time.sleep(0.05)

    thread = make(log, work)
    for step in range(3):
        thread.execute(empty(step))
    running.wait()
    thread.close()
    assert log == ["start 0"]
    assert not [t for t in threading.enumerate() if t.name.startswith("pegboard-step")]


def test_a_step_sees_the_callers_context_and_thread_count(log: list[str]) -> None:
    before = torch.get_num_threads()
    thread = make(log)
    seen = []
    try:
        for tenant, count in (("ada", 1), ("bob", 2), ("eve", 1)):
            TENANT.set(tenant)
            torch.set_num_threads(count)
            work = thread.submit(lambda: (TENANT.get(), torch.get_num_threads()))
            seen.append(work.result())
            assert torch.get_num_threads() == count, "the caller's own count is untouched"
    finally:
        torch.set_num_threads(before)
        thread.close()
    assert seen == [("ada", 1), ("bob", 2), ("eve", 1)]


def main_thread() -> int:
    main = threading.main_thread().ident
    assert main is not None
    return main


class Threaded(NullExecutor):
    """A null executor whose steps run on a thread."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.busy = False
        self.thread = StepThread(self._run)

    def _run(self, plan: StepPlan) -> Pending:
        self.busy = True
        pending = super().execute(plan)
        self.busy = False
        return pending

    def execute(self, plan: StepPlan) -> Pending:
        return self.thread.execute(plan)

    def close(self) -> None:
        self.thread.close()


def core_of(executor: Threaded, overlap: bool = True):  # type: ignore[no-untyped-def]
    config = EngineConfig(model="null", num_gpu_blocks_override=64, async_scheduling=overlap)
    return build_core(config, executor, 256)[0]


class Held(Threaded):
    """Interrupts the main thread in its first step, which then runs until it is let go."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.gate = threading.Event()
        self.left_waiting = False

    def _run(self, plan: StepPlan) -> Pending:
        if not self.gate.is_set():
            signal.pthread_kill(main_thread(), signal.SIGINT)
            self.left_waiting |= not self.gate.wait(20)
        return super()._run(plan)


def test_an_interrupt_reaches_a_caller_that_waits_and_the_next_request_works() -> None:
    executor = Held()
    core = core_of(executor)
    core.add(toy_request("a", [1], 8))
    with pytest.raises(KeyboardInterrupt):
        core.step()
    executor.gate.set()
    core.scheduler.check()
    core.add(toy_request("b", [1], 3))
    told = {}
    while core.has_work():
        for output in core.step():
            told[output.request_id] = (output.finish_reason, output.token_ids)
    assert told["a"] == ("error", [])
    assert told["b"] == ("length", [1])
    assert core.stats().used_blocks == 0
    core.close()
    assert not executor.left_waiting, "the interrupt came before the step was over"


@pytest.mark.parametrize("overlap", [True, False])
def test_the_host_plans_while_a_step_runs(overlap: bool) -> None:
    executor = Threaded(0.002)
    core = core_of(executor, overlap)
    plan, planned_meanwhile = core.scheduler.plan, 0

    def slow_plan() -> StepPlan:
        nonlocal planned_meanwhile
        until = time.perf_counter() + 0.001
        while time.perf_counter() < until:
            planned_meanwhile += executor.busy
        return plan()

    core.scheduler.plan = slow_plan
    core.add(toy_request("a", [1], 40))
    while core.has_work():
        core.step()
    core.close()
    assert (planned_meanwhile > 0) is overlap
    assert (core.overlapped > 30) is overlap


# A real model


PROMPTS = ["Once upon a time", "a", "The same long beginning of many prompts, again", "xyz " * 20]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=20, repetition_penalty=1.3, logprobs=2),
    SamplingParams(temperature=0.9, max_tokens=24, seed=3, n=3, stop=["e", "q"]),
    SamplingParams(temperature=0.7, max_tokens=24, seed=4, frequency_penalty=1.0, min_tokens=8),
    SamplingParams(temperature=1.0, max_tokens=16, seed=5, presence_penalty=1.5, prompt_logprobs=1),
]
STOPPING = SamplingParams(temperature=1.0, max_tokens=40, seed=8, stop=list("abcdefgh"))


def outcome(llm: LLM) -> list[dict[str, Any]]:
    done = llm.generate([*PROMPTS, "stop me"], [*PARAMS, STOPPING], use_tqdm=False)
    return [
        {
            "prompt scores": item.prompt_logprobs and len(item.prompt_logprobs),
            "tokens": (out.token_ids, out.text),
            "end": (out.finish_reason, out.stop_reason),
            "alternatives": [list(entry) for entry in out.logprobs or []],
        }
        for item in done
        for out in item.outputs
    ]


@pytest.mark.parametrize("blocks", [64, 16])
def test_a_real_model_gives_the_same_with_and_without_overlap(tmp_path: Path, blocks: int) -> None:
    model = write_tiny_model(tmp_path / "tiny", seed=5)
    told = {}
    for overlap in (True, False):
        options = {"max_model_len": 128, "num_gpu_blocks_override": blocks, "max_num_seqs": 8}
        options |= {"dtype": "float32", "max_num_batched_tokens": 32, "async_scheduling": overlap}
        with LLM(str(model), **options) as llm:
            told[overlap] = outcome(llm)
            core = llm.engine.core
            assert (core.overlapped > 20) is overlap, f"{core.overlapped} steps overlapped"
            assert (core.stats().preemptions > 0) is (blocks == 16)
            assert core.reset_prefix_cache(), "a block is lost"
    assert told[True] == told[False]
    assert {str(item["end"][0]) for item in told[True]} == {"stop", "length"}


def test_a_real_model_goes_on_after_an_interrupt_in_the_middle_of_a_step(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny", seed=5)
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    options = {"max_model_len": 128, "num_gpu_blocks_override": 64, "dtype": "float32"}
    left = 5

    with LLM(str(model), max_num_seqs=4, **options) as llm:
        before = llm.generate(PROMPTS, params, use_tqdm=False)
        thread = llm.engine.core.executor._thread
        forward = thread._execute

        def interrupted(plan: StepPlan) -> Pending:
            nonlocal left
            left -= 1
            if left == 0:
                signal.pthread_kill(main_thread(), signal.SIGINT)
            return forward(plan)

        thread._execute = interrupted
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, params, use_tqdm=False)
        assert not llm.engine.has_unfinished_requests()
        llm.engine.core.scheduler.check()
        after = llm.generate(PROMPTS, params, use_tqdm=False)
        assert left < -15, "steps ran after the interrupt"
        assert [a.outputs[0].token_ids for a in after] == [b.outputs[0].token_ids for b in before]
