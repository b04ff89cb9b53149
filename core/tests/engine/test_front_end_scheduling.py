"""What of scheduling is seen from the front end: priorities, stream interval, times."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from pegboard.api.params import SamplingParams
from pegboard.config.engine import EngineConfig
from pegboard.engine.build import build_core
from pegboard.engine.inputs import InputProcessor
from pegboard.engine.llm_engine import LLMEngine
from pegboard.engine.outputs import RequestOutput
from pegboard.errors import RequestError, ResourceError
from pegboard.testing.toy import ToyExecutor

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


def engine(executor: ToyExecutor | None = None, **settings: Any) -> LLMEngine:
    options = {"model": "toy", "num_gpu_blocks_override": 64, "max_num_seqs": 8, **settings}
    config = EngineConfig(**options)
    core, _ = build_core(config, executor or ToyExecutor(), 256)
    inputs = InputProcessor(
        encoder=None,
        vocab_size=97,
        max_model_len=256,
        eos_token_ids=(),
        seeds=random.Random(0),
        priorities=config.scheduling_policy == "priority",
    )
    return LLMEngine(core, inputs, None, config.stream_interval)


def finished(llm: LLMEngine) -> list[RequestOutput]:
    """Run to the end; in order of finishing."""
    done = []
    while llm.has_unfinished_requests():
        done += [output for output in llm.step() if output.finished]
    llm.core.scheduler.check()
    return done


# Priorities


def test_priorities_decide_who_is_served_first() -> None:
    llm = engine(max_num_seqs=1, scheduling_policy="priority")
    for name, priority in (("c", 7), ("b", 0), ("a", -3)):
        llm.add_request(name, [1, 2], GREEDY, priority=priority)
    assert [output.request_id for output in finished(llm)] == ["a", "b", "c"]


@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
def test_a_priority_that_no_policy_looks_at_is_refused(policy: str) -> None:
    llm = engine(scheduling_policy=policy)
    with pytest.raises(RequestError, match="scheduling_policy='priority'") as caught:
        llm.add_request("a", [1], GREEDY, priority=1)
    assert caught.value.field == "priority"
    assert not llm.has_unfinished_requests()


@pytest.mark.parametrize("value", ["high", 1.0, True, None, 2**63])
def test_a_priority_is_an_integer(value: Any) -> None:
    llm = engine(scheduling_policy="priority")
    with pytest.raises(RequestError, match="it must be an integer of 64 bits"):
        llm.add_request("a", [1], GREEDY, priority=value)
    llm.add_request("a", [1], GREEDY, priority=-(2**63))
    assert len(finished(llm)) == 1


def test_o13_ids_under_priorities_neither_clash_nor_harm_each_other() -> None:
    llm = engine(scheduling_policy="priority")
    llm.add_request("0", [1, 2, 3], SamplingParams(n=2, max_tokens=4), priority=2)
    llm.add_request("0.1", [4], GREEDY, priority=1)
    with pytest.raises(RequestError, match="in use by a live request"):
        llm.add_request("0", [9], GREEDY, priority=0)
    outputs = {output.request_id: output for output in finished(llm)}
    assert {name: len(output.outputs) for name, output in outputs.items()} == {"0": 2, "0.1": 1}
    assert min(llm.stats().running, llm.stats().waiting, llm.stats().used_blocks) == 0


def test_a_family_that_can_never_run_is_refused_whole_and_the_next_one_works() -> None:
    llm = engine(
        enable_chunked_prefill=False, max_num_batched_tokens=16, scheduling_policy="priority"
    )
    params = SamplingParams(n=3, max_tokens=5)
    with pytest.raises(ResourceError, match="max_num_batched_tokens=16"):
        llm.add_request("a", [1] * 20, params, priority=-1)
    assert not llm.has_unfinished_requests() and not llm.core.has_work()
    llm.add_request("a", [1] * 16, params, priority=1)
    assert len(finished(llm)[0].outputs) == 3


# Stream interval


def deliveries(interval: int, params: SamplingParams) -> list[list[int]]:
    """Lengths of the outputs at each delivery."""
    llm = engine(stream_interval=interval)
    llm.add_request("a", [1, 2, 3], params)
    seen: list[list[int]] = []
    while llm.has_unfinished_requests():
        for output in llm.step():
            seen.append([len(item.token_ids) for item in output.outputs])
    return seen


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        (1, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
        (4, [1, 5, 9, 12]),
        (11, [1, 12]),
        (100, [1, 12]),
    ],
)
def test_outputs_come_with_the_first_token_every_interval_and_the_last(
    interval: int, expected: list[int]
) -> None:
    assert [length for (length,) in deliveries(interval, GREEDY)] == expected


def test_an_output_of_one_token_is_delivered_once() -> None:
    assert deliveries(8, SamplingParams(temperature=0.0, max_tokens=1)) == [[1]]


def test_each_of_several_sequences_is_delivered_with_its_first_token() -> None:
    params = SamplingParams(n=2, max_tokens=9, seed=1)
    seen = deliveries(4, params)
    assert [1, 0] in seen and seen[-1] == [9, 9]
    assert len(seen) < len(deliveries(1, params))


@pytest.mark.parametrize("interval", [1, 3, 50])
def test_the_interval_changes_no_token_logprob_or_prompt_score(interval: int) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=10, logprobs=0, prompt_logprobs=0)
    whole = {}
    for pace in (1, interval):
        llm = engine(stream_interval=pace, max_num_batched_tokens=8)
        llm.add_request("a", list(range(30)), params)
        (output,) = finished(llm)
        whole[pace] = (output.outputs, output.prompt_logprobs)
    assert whole[interval] == whole[1]


def test_an_abort_between_deliveries_leaves_the_tokens_that_were_there() -> None:
    llm = engine(stream_interval=50)
    llm.add_request("a", [1, 2, 3], GREEDY)
    (first,) = llm.step()
    for _ in range(3):
        assert llm.step() == []
    llm.abort_request("a")
    assert first.finished
    assert len(first.outputs[0].token_ids) == 4


# Times


def test_times_add_up_and_are_in_order() -> None:
    llm = engine(max_num_seqs=1)
    before = time.monotonic()
    for name in "ab":
        llm.add_request(name, [1, 2, 3], GREEDY)
    first, second = finished(llm)
    for output in (first, second):
        times = output.metrics
        marks = [times.queued_ts, times.scheduled_ts, times.first_token_ts, times.last_token_ts]
        marks = [before, *marks, time.monotonic()]
        assert None not in marks
        assert marks == sorted(marks)  # type: ignore[type-var]
        parts = (times.queue_seconds, times.prefill_seconds, times.decode_seconds)
        assert sum(parts) == pytest.approx(times.last_token_ts - times.queued_ts)  # type: ignore[arg-type, operator]
        assert times.preemptions == 0
    assert first.metrics.last_token_ts < second.metrics.scheduled_ts  # type: ignore[operator]


def test_preemptions_are_counted_for_the_requests_that_had_them() -> None:
    llm = engine(
        num_gpu_blocks_override=34, block_size=8, watermark=0.0, enable_prefix_caching=False
    )
    params = SamplingParams(temperature=0.0, max_tokens=150)
    for number in range(3):
        llm.add_request(str(number), [number] * 60, params)
    counts = {output.request_id: output.metrics.preemptions for output in finished(llm)}
    assert counts["0"] == 0
    assert sum(counts.values()) == llm.stats().preemptions > 0


def test_cached_tokens_of_the_requests_add_up_to_the_engines_hits() -> None:
    llm = engine(scheduling_policy="lpm")
    for number in range(4):
        llm.add_request(str(number), [*range(40), number], GREEDY)
    outputs = finished(llm)
    cache = llm.stats().cache
    assert sum(output.num_cached_tokens for output in outputs) == cache.hit_tokens == 3 * 32
    assert cache.hit_rate == 96 / 164


def test_an_engine_that_was_never_asked_has_a_hit_rate_of_0() -> None:
    assert engine().stats().cache.hit_rate == 0.0
