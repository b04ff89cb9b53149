"""The front end and the engine together, over an executor without tensors."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from pegboard.api.params import SamplingParams
from pegboard.api.step import StepPlan
from pegboard.api.views import EngineRequest
from pegboard.config.engine import EngineConfig
from pegboard.engine import output_processor
from pegboard.engine.build import build_core
from pegboard.engine.inputs import InputProcessor
from pegboard.engine.llm_engine import LLMEngine
from pegboard.engine.outputs import CompletionOutput, RequestOutput
from pegboard.errors import EngineDeadError, RequestError, ResourceError
from pegboard.scheduler.request import Request
from pegboard.testing.toy import ToyExecutor, toy_generate
from pegboard.text.stops import StopSet

CONTEXT = 256


def engine(executor: ToyExecutor | None = None, **settings: Any) -> LLMEngine:
    options = {"model": "toy", "num_gpu_blocks_override": 64, "max_num_seqs": 8, **settings}
    config = EngineConfig(**options)
    core, _ = build_core(config, executor or ToyExecutor(), CONTEXT)
    inputs = InputProcessor(
        encoder=None,
        vocab_size=97,
        max_model_len=CONTEXT,
        eos_token_ids=(),
        seeds=random.Random(0),
        priorities=config.scheduling_policy == "priority",
    )
    return LLMEngine(core, inputs, None, config.stream_interval)


def run(llm: LLMEngine) -> dict[str, RequestOutput]:
    done = {}
    while llm.has_unfinished_requests():
        done |= {item.request_id: item for item in llm.step() if item.finished}
    llm.core.scheduler.check()
    return done


def expected(prompt: list[int], params: SamplingParams, seed: int = 0, child: int = 0) -> list[int]:
    alone = EngineRequest("x", prompt, params, seed, max_tokens=params.max_tokens or 0, child=child)
    return toy_generate(alone)


GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


def test_requests_added_while_others_run_get_their_own_tokens() -> None:
    llm = engine()
    llm.add_request("a", [1, 2, 3], GREEDY)
    llm.step()
    llm.add_request("b", [4, 5], GREEDY)
    done = run(llm)
    assert done["a"].outputs[0].token_ids == expected([1, 2, 3], GREEDY)
    assert done["b"].outputs[0].token_ids == expected([4, 5], GREEDY)
    assert done["a"].outputs[0].finish_reason == "length"


def test_children_of_one_request_prefill_once_and_differ() -> None:
    executor = ToyExecutor()
    llm = engine(executor, enable_prefix_caching=False)
    params = SamplingParams(n=3, seed=5, max_tokens=6)
    prompt = list(range(40))
    llm.add_request("a", prompt, params)
    outputs = run(llm)["a"].outputs
    assert [item.index for item in outputs] == [0, 1, 2]
    assert [item.token_ids for item in outputs] == [
        expected(prompt, params, seed=5, child=child) for child in range(3)
    ]
    assert executor.counts.tokens == 40 + 2 + 3 * 5, "two children compute one prompt token each"


@pytest.mark.parametrize("abort", [False, True])
def test_the_work_for_many_sequences_grows_with_their_number(
    abort: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is parked once and its end is looked at once, however many others there are."""
    counts = {"parked": 0, "sets": 0, "finished": 0}
    park, finished = Request.park, CompletionOutput.finished.fget

    def counted(self: Request, leader: Request) -> None:
        counts["parked"] += 1
        park(self, leader)

    def looked_at(self: CompletionOutput) -> bool:
        counts["finished"] += 1
        return bool(finished(self))  # type: ignore[misc]

    def stop_set(stops: Any) -> StopSet:
        counts["sets"] += 1
        return StopSet(stops)

    monkeypatch.setattr(Request, "park", counted)
    monkeypatch.setattr(CompletionOutput, "finished", property(looked_at))
    monkeypatch.setattr(output_processor, "StopSet", stop_set)
    llm = engine(num_gpu_blocks_override=512)
    llm.inputs.encoder = cast(Any, object())  # stop strings are refused where there is none
    number, tokens = 300, 2
    llm.add_request("a", [1, 2, 3], SamplingParams(n=number, max_tokens=tokens, stop="x"))
    if abort:
        llm.abort_request("a")
    else:
        assert len(run(llm)["a"].outputs) == number
    assert counts["sets"] == 1
    assert counts["parked"] == number - 1
    assert counts["finished"] <= 4 * number * tokens


def test_o13_a_second_live_request_with_the_same_id_is_refused_and_the_first_unharmed() -> None:
    llm = engine()
    llm.add_request("a", [1, 2, 3], GREEDY)
    with pytest.raises(RequestError, match="request_id='a'") as caught:
        llm.add_request("a", [9], GREEDY)
    assert caught.value.field == "request_id"
    assert run(llm)["a"].outputs[0].token_ids == expected([1, 2, 3], GREEDY)
    llm.add_request("a", [9], GREEDY)
    assert run(llm)["a"].outputs[0].token_ids == expected([9], GREEDY)


def test_o13_an_id_that_looks_like_a_childs_is_just_an_id() -> None:
    llm = engine()
    llm.add_request("0", [1, 2, 3], SamplingParams(n=2, max_tokens=4))
    llm.add_request("0.1", [4], GREEDY)
    done = run(llm)
    assert len(done["0"].outputs) == 2
    assert done["0.1"].outputs[0].token_ids == expected([4], GREEDY)


def test_an_aborted_request_ends_and_leaves_nothing() -> None:
    llm = engine()
    llm.add_request("a", [1, 2, 3], SamplingParams(n=2, max_tokens=50))
    llm.add_request("b", [4, 5], GREEDY)
    llm.step()
    llm.abort_request(["a", "unknown"])
    done = run(llm)
    assert list(done) == ["b"]
    assert llm.stats().used_blocks == 0


def test_a_request_that_can_never_fit_is_refused_and_the_next_one_works() -> None:
    llm = engine(num_gpu_blocks_override=64)
    with pytest.raises(ResourceError):
        engine(num_gpu_blocks_override=4)
    llm.add_request("a", [1], GREEDY)
    assert run(llm)["a"].finished


def test_a_failing_row_ends_its_request_alone() -> None:
    llm = engine(ToyExecutor(poison=66))
    llm.add_request("bad", [1, 66, 3], GREEDY)
    good = next([n] for n in range(60) if 66 not in expected([n], GREEDY))
    llm.add_request("good", good, GREEDY)
    done = run(llm)
    assert done["bad"].outputs[0].finish_reason == "error"
    assert "poison" in (done["bad"].outputs[0].error or "")
    assert done["good"].outputs[0].token_ids == expected(good, GREEDY)


class Broken(ToyExecutor):
    """Fails in its third step."""

    failure: type[BaseException] = RuntimeError

    def execute(self, plan: StepPlan) -> Any:
        if self.counts.steps == 2:
            self.counts.steps += 1
            raise self.failure("no device")
        return super().execute(plan)


@pytest.mark.parametrize("overlap", [True, False])
def test_a_fault_of_the_engine_ends_every_request_and_says_so_ever_after(overlap: bool) -> None:
    llm = engine(Broken(), async_scheduling=overlap)
    llm.add_request("a", [1], GREEDY)
    with pytest.raises(EngineDeadError, match="no device"):
        run(llm)
    assert not llm.has_unfinished_requests()
    with pytest.raises(EngineDeadError, match="failed earlier"):
        llm.add_request("b", [1], GREEDY)


@pytest.mark.parametrize("overlap", [True, False])
def test_an_interrupt_drops_what_is_in_flight_and_the_engine_goes_on(overlap: bool) -> None:
    broken = Broken()
    broken.failure = KeyboardInterrupt
    llm = engine(broken, async_scheduling=overlap)
    llm.add_request("a", [1], GREEDY)
    with pytest.raises(KeyboardInterrupt):
        run(llm)
    llm.core.scheduler.check()
    llm.add_request("b", [4, 5], GREEDY)
    done = run(llm)
    assert done["a"].outputs[0].error == "the step was interrupted"
    assert done["b"].outputs[0].token_ids == expected([4, 5], GREEDY)


def test_logprobs_add_up() -> None:
    llm = engine()
    llm.add_request("a", [1, 2], SamplingParams(temperature=0.0, max_tokens=5, logprobs=0))
    (item,) = run(llm)["a"].outputs
    assert item.logprobs is not None and item.cumulative_logprob is not None
    assert [list(entry) for entry in item.logprobs] == [[token] for token in item.token_ids]
    total = sum(
        entry[token].logprob for entry, token in zip(item.logprobs, item.token_ids, strict=True)
    )
    assert item.cumulative_logprob == pytest.approx(total)


@pytest.mark.parametrize("budget", [8, 16, 64])
def test_prompt_logprobs_have_one_entry_per_prompt_token(budget: int) -> None:
    llm = engine(max_num_batched_tokens=budget)
    params = SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=0)
    prompt = list(range(40))
    for name in ("first", "again"):
        llm.add_request(name, prompt, params)
        output = run(llm)[name]
        assert output.prompt_logprobs is not None
        assert output.prompt_logprobs[0] is None
        assert [list(entry) for entry in output.prompt_logprobs[1:] if entry] == [
            [token] for token in prompt[1:]
        ]
        assert output.outputs[0].token_ids == []
        assert output.outputs[0].finish_reason == "length"


def test_a_repeated_prompt_comes_from_the_cache() -> None:
    llm = engine()
    prompt = list(range(40))
    llm.add_request("a", prompt, GREEDY)
    assert run(llm)["a"].num_cached_tokens == 0
    llm.add_request("b", prompt, GREEDY)
    assert run(llm)["b"].num_cached_tokens == 32
    assert llm.reset_prefix_cache()
    llm.add_request("c", prompt, GREEDY)
    assert run(llm)["c"].num_cached_tokens == 0
