"""Two steps in flight: the same tokens as one, nothing told twice, nothing lost."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pegboard.api.executor import Pending
from pegboard.api.params import SamplingParams
from pegboard.api.step import LateInputs, NewRow, StepPlan, StepResult
from pegboard.api.views import EngineOutput, EngineRequest
from pegboard.config.engine import EngineConfig
from pegboard.engine.build import build_core
from pegboard.engine.core import EngineCore
from pegboard.errors import ConfigError
from pegboard.testing.scripted_masks import Rule, ScriptedMasks
from pegboard.testing.toy import ToyExecutor, toy_generate
from pegboard.testing.toy_engine import Told, toy_request

CONTEXT = 160
TOY_VOCABULARY = 97


def core(
    overlap: bool | None = True, executor: ToyExecutor | None = None, **options: Any
) -> EngineCore:
    late = options.pop("late", None)
    options = {"num_gpu_blocks_override": 64, "max_num_seqs": 8, "block_size": 8, **options}
    config = EngineConfig(model="toy", async_scheduling=overlap, **options)
    return build_core(config, executor or ToyExecutor(), CONTEXT, late=late)[0]


class Run:
    """Steps an engine and keeps what it told."""

    def __init__(self, engine: EngineCore, requests: Sequence[EngineRequest] = ()) -> None:
        self.engine = engine
        self.told: dict[str, Told] = {}
        for request in requests:
            self.add(request)

    def add(self, request: EngineRequest) -> None:
        self.engine.add(request)
        self.told[request.request_id] = Told()

    def step(self) -> None:
        self.take(self.engine.step())
        self.engine.scheduler.check()

    def take(self, outputs: Sequence[EngineOutput]) -> None:
        for output in outputs:
            told = self.told[output.request_id]
            assert told.finish_reason is None, f"{output.request_id} was told after its end"
            told.token_ids += output.token_ids
            told.last = output
            if output.logprobs is not None:
                assert [entry.ids[0] for entry in output.logprobs] == output.token_ids
            if output.prompt_logprobs is not None:
                told.scores += [
                    (place, entry.logprobs[0])
                    for place, entry in enumerate(
                        output.prompt_logprobs.entries, output.prompt_logprobs.first
                    )
                ]

    def finish(self) -> dict[str, Told]:
        while self.engine.has_work():
            self.step()
        assert self.engine.stats().used_blocks == 0
        return self.told


def workload(seed: int) -> list[EngineRequest]:
    """Requests with everything that can end or shape them."""
    rng = random.Random(seed)
    stem = [rng.randrange(90) for _ in range(40)]
    requests = []
    for number in range(8):
        n, limit = rng.choice([1, 1, 3]), rng.randrange(1, 40)
        params = SamplingParams(
            n=n,
            temperature=1.0 if n > 1 else rng.choice([0.0, 1.0]),
            min_tokens=rng.randrange(limit),
            stop_token_ids=rng.sample(range(97), rng.choice([0, 4])),
            logprobs=rng.choice([None, 0]),
            prompt_logprobs=rng.choice([None, None, 0]),
            max_tokens=limit,
        )
        prompt = stem[: rng.randrange(40)] + [rng.randrange(90) for _ in range(1 + number)]
        for child in range(n):
            requests.append(
                toy_request(
                    f"{number}.{child}",
                    prompt,
                    limit,
                    params=params,
                    seed=number,
                    child=child,
                    parent=f"{number}.0" if child else None,
                    end_ids=rng.sample(range(97), rng.choice([0, 5])),
                )
            )
    return requests


@pytest.mark.parametrize("seed", range(6))
def test_tokens_are_the_same_with_and_without_overlap(seed: int) -> None:
    tight = {"num_gpu_blocks_override": 22, "max_num_batched_tokens": 24}
    told = {}
    for overlap in (True, False):
        engine = core(overlap, **tight)
        told[overlap] = Run(engine, workload(seed)).finish()
        assert (engine.overlapped > 40) is overlap, f"{engine.overlapped} steps overlapped"
        assert engine.stats().preemptions > 0
    for request in workload(seed):
        on, off = (told[overlap][request.request_id] for overlap in (True, False))
        assert on.token_ids == off.token_ids == toy_generate(request)
        assert (on.finish_reason, on.stop_reason) == (off.finish_reason, off.stop_reason)
        assert on.scores == off.scores


def test_a_token_sampled_after_the_end_is_dropped() -> None:
    executor = ToyExecutor()
    engine = core(executor=executor)
    text = toy_generate(toy_request("x", [1, 2], 30))
    end = next(n for n in range(3, 30) if text[n] not in text[:n])
    told = Run(engine, [toy_request("a", [1, 2], 30, end_ids=[text[end]])]).finish()["a"]
    assert told.token_ids == text[: end + 1]
    assert told.finish_reason == "stop"
    assert executor.counts.rows == end + 1 + 1, "one step too many was in flight"


def test_a_length_that_is_known_beforehand_wastes_no_step() -> None:
    executor = ToyExecutor()
    told = Run(core(executor=executor), [toy_request("a", [1, 2], 5)]).finish()["a"]
    assert len(told.token_ids) == 5
    assert executor.counts.rows == 5


@pytest.mark.parametrize("way", ["abort", "finish"])
@pytest.mark.parametrize("when", range(1, 9))
def test_a_request_dropped_while_its_step_is_in_flight_tells_nothing_more(
    way: str, when: int
) -> None:
    engine = core(max_num_batched_tokens=16)
    run = Run(engine, [toy_request(name, [ord(name)] * 30, 20) for name in "ab"])
    for _ in range(when):
        run.step()
    before = list(run.told["a"].token_ids)
    if way == "abort":
        run.take(engine.abort(["a"]))
        assert run.told["a"].finish_reason == "abort"
    else:
        engine.finish(["a"], "stop")
    run.add(toy_request("c", [3] * 30, 20))
    told = run.finish()
    assert told["a"].token_ids == before
    for name, prompt in (("b", [98] * 30), ("c", [3] * 30)):
        assert told[name].token_ids == toy_generate(toy_request(name, prompt, 20))
    assert engine.overlapped > 10


# Late masks


def rule_of(new: NewRow) -> Rule | None:
    """Every other request has one: what may come next depends on all that came before."""
    kind = new.prompt_ids[0] % 4
    if kind % 2 == 0:
        return None
    return lambda output: {t for t in range(97) if (t + sum(output) + len(output)) % 3 == kind % 3}


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("blocks", [64, 22])
def test_masks_follow_the_right_prefix(overlap: bool, blocks: int) -> None:
    masks = ScriptedMasks(TOY_VOCABULARY, rule_of)
    engine = core(overlap, late=masks, num_gpu_blocks_override=blocks, max_num_batched_tokens=24)
    requests = [
        toy_request(f"{n}", [n, *range(n, 30)], 10 + n, end_ids=[5, 6, 7] if n > 6 else [])
        for n in range(10)
    ]
    told = Run(engine, requests).finish()
    for request in requests:
        free = NewRow(0, request.prompt_ids, [], request.params, 0, 0, [], [])
        assert told[request.request_id].token_ids == toy_generate(request, rule_of(free))
    assert masks.masks > 30
    assert masks.mixed_steps > 10, "rows with and without masks must meet"
    if overlap:
        assert engine.overlapped > 20
        assert masks.late > 20, "hardly a mask waited for the token before"
    else:
        assert masks.late == engine.overlapped == 0
    assert (engine.stats().preemptions > 0) is (blocks == 22)


def test_a_step_without_masks_is_sampled_at_once_and_one_with_masks_after_the_update() -> None:
    calls: list[str] = []

    class Noting(ToyExecutor):
        def execute(self, plan: StepPlan) -> Pending:
            calls.append(f"start {plan.step_id}")
            return super().execute(plan)

        def sample(self, plan: StepPlan, late: LateInputs) -> StepResult:
            calls.append(f"sample {plan.step_id}")
            return super().sample(plan, late)

    for masked, expected in (
        (0, ["start 0", "sample 0", "start 1", "sample 1", "update 0", "start 2", "sample 2"]),
        (1, ["start 0", "sample 0", "start 1", "update 0", "sample 1", "start 2", "update 1"]),
    ):
        calls.clear()
        engine = core(executor=Noting(), late=ScriptedMasks(TOY_VOCABULARY, rule_of))
        update = engine.scheduler.update

        def noted(
            plan: StepPlan,
            result: StepResult,
            update: Callable[..., list[EngineOutput]] = update,
        ) -> list[EngineOutput]:
            calls.append(f"update {plan.step_id}")
            return update(plan, result)

        engine.scheduler.update = noted  # type: ignore[method-assign]
        Run(engine, [toy_request("a", [masked], 10)]).finish()
        assert calls[:7] == expected


def test_a_grammar_that_allows_nothing_ends_its_request_alone() -> None:
    def nothing_after_two(new: NewRow) -> Rule | None:
        return (lambda out: range(97) if len(out) < 2 else ()) if new.prompt_ids == [1] else None

    engine = core(late=ScriptedMasks(TOY_VOCABULARY, nothing_after_two))
    told = Run(engine, [toy_request("a", [1], 10), toy_request("b", [2], 10)]).finish()
    assert told["a"].finish_reason == "error" and len(told["a"].token_ids) == 2
    assert told["b"].token_ids == toy_generate(toy_request("b", [2], 10))


# Interrupts and faults


class Trap:
    """Does something at the n-th call of a method of `target`, around it."""

    def __init__(self, target: Any, name: str, call: int, act: Callable[[], None]) -> None:
        self._inner, self._left, self._act = getattr(target, name), call, act
        setattr(target, name, self)

    def __call__(self, *args: Any) -> Any:
        self._left -= 1
        result = self._inner(*args)
        if self._left == 0:
            self._act()
        return result


def raise_interrupt() -> None:
    raise KeyboardInterrupt


def press_the_key() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("call", [1, 2, 5])
@pytest.mark.parametrize("where", ["execute", "sample", "plan", "update", "planned", "updated"])
def test_an_interrupt_anywhere_drops_the_steps_in_flight_and_nothing_else(
    where: str, call: int, overlap: bool
) -> None:
    engine = core(
        overlap,
        late=ScriptedMasks(TOY_VOCABULARY, rule_of),
        max_num_seqs=2,
        max_num_batched_tokens=16,
    )
    outside = where in ("execute", "sample")
    target = engine.executor if outside else engine._late
    target = engine.scheduler if where in ("plan", "update") else target
    Trap(target, where, call, raise_interrupt if outside else press_the_key)
    requests = [toy_request(f"{n}", [n] * 20, 12) for n in range(1, 6)]
    run = Run(engine, requests)
    with pytest.raises(KeyboardInterrupt):
        run.finish()
    engine.scheduler.check()
    told = run.finish()
    dropped = [name for name, item in told.items() if item.finish_reason == "error"]
    assert len(dropped) <= 2, "requests that were not in flight are not hurt"
    assert dropped or where == "updated" or (where, call) == ("update", 1) or not overlap
    for request in requests:
        row = NewRow(0, request.prompt_ids, [], request.params, 0, 0, [], [])
        whole = toy_generate(request, rule_of(row))
        item = told[request.request_id]
        if request.request_id in dropped:
            assert item.last is not None and item.last.error == "the step was interrupted"
            assert item.token_ids == whole[: len(item.token_ids)]
        else:
            assert item.token_ids == whole, "what was told before the interrupt is not lost"


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("where", ["execute", "sample"])
def test_a_fault_of_the_executor_is_raised_and_the_engine_can_be_closed(
    where: str, overlap: bool
) -> None:
    engine = core(overlap)

    def fail() -> None:
        raise OSError("no device")

    Trap(engine.executor, where, 4, fail)
    run = Run(engine, [toy_request("a", [1], 20)])
    with pytest.raises(OSError, match="no device"):
        run.finish()
    assert 1 <= len(run.told["a"].token_ids) <= 3
    engine.close()


# Choice


class OneByOne(ToyExecutor):
    """An executor that cannot overlap."""

    max_in_flight = 1


def test_overlap_is_chosen_where_the_executor_can() -> None:
    assert core(None).depth == 2
    assert core(False).depth == 1


def test_without_the_ability_overlap_is_off_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[tuple[str, Any]] = []

    class Logger:
        def info(self, event: str, **facts: Any) -> None:
            said.append((event, facts.get("reason")))

    monkeypatch.setattr("pegboard.engine.build.get_logger", lambda name: Logger())
    engine = core(None, executor=OneByOne())
    assert engine.depth == 1
    assert ("async scheduling is off", "OneByOne runs one step at a time") in said
    told = Run(engine, [toy_request("a", [1], 8)]).finish()
    assert told["a"].token_ids == toy_generate(toy_request("a", [1], 8))


def test_overlap_that_is_asked_for_and_cannot_be_had_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"async_scheduling=True is not allowed.*OneByOne"):
        core(True, executor=OneByOne())
    with pytest.raises(ConfigError, match="async_scheduling='yes' is not allowed: True, False"):
        EngineConfig(model="toy", async_scheduling="yes")


# Between steps


def test_a_reset_of_the_cache_finishes_what_is_in_flight_and_loses_no_token() -> None:
    engine = core()
    run = Run(engine, [toy_request("a", [1] * 20, 12, end_ids=[])])
    for _ in range(3):
        run.step()
    assert not engine.reset_prefix_cache(), "a request still uses blocks"
    told = run.finish()["a"]
    assert told.token_ids == toy_generate(toy_request("a", [1] * 20, 12))
    assert engine.reset_prefix_cache()


def test_a_reset_right_after_the_last_token_finds_no_step_in_the_way() -> None:
    engine = core()
    text = toy_generate(toy_request("x", [1, 2], 30))
    run = Run(engine, [toy_request("a", [1, 2], 30, end_ids=text[4:5])])
    while run.told["a"].finish_reason is None:
        run.step()
    assert engine.stats().used_blocks > 0, "a step is still in flight"
    assert engine.reset_prefix_cache()
