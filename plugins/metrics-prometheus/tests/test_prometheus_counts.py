"""Every number is exactly that of what was asked for and answered."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pegboard import LLM, AsyncLLM, SamplingParams
from pegboard.errors import EngineDeadError

GREEDY = SamplingParams(temperature=0.0, max_tokens=20)
made = partial(SamplingParams, temperature=0.0, ignore_eos=True)
MADE = 7 + 1
"""Tokens of the script and its end."""
PHASES = ("queue", "prefill", "decode", "inference")


def test_a_scripted_run_is_counted_to_the_number(scripted: Any) -> None:
    before = scripted.scrape()
    scripted.answer(["xy", "xz", "yz"], GREEDY)
    found = scripted.scrape()
    assert found("prompt_tokens_total") == 6 and before("prompt_tokens_total") == 0
    assert found("generation_tokens_total") == 3 * MADE
    assert found("request_success_total", finished_reason="stop") == 3
    for reason in ("length", "abort", "error"):
        assert found("request_success_total", finished_reason=reason) == 0
    for name, count, total in (
        ("request_prompt_tokens", 3, 6),
        ("request_generation_tokens", 3, 3 * MADE),
        ("request_max_num_generation_tokens", 3, 3 * MADE),
        ("request_params_max_tokens", 3, 60),
        ("request_params_n", 3, 3),
        ("request_prefill_kv_computed_tokens", 3, 6),
        ("request_num_preemptions", 3, 0),
    ):
        assert (found(f"{name}_count"), found(f"{name}_sum")) == (count, total), name
    assert found("request_prompt_tokens_bucket", le="1.0") == 0
    assert found("request_prompt_tokens_bucket", le="2.0") == 3
    assert found("time_to_first_token_seconds_count") == 3
    assert found("inter_token_latency_seconds_count") == 3 * (MADE - 1)
    assert found("request_time_per_output_token_seconds_count") == 3
    assert found("iteration_tokens_total_sum") == 6 + 3 * MADE
    assert MADE <= found("iteration_tokens_total_count") <= 3 * MADE
    assert found("prefix_cache_queries_total") == 6 and found("prefix_cache_hits_total") == 0
    assert found("prompt_tokens_by_source_total", source="local_compute") == 6


def test_what_is_counted_is_the_same_in_both_modes(asked: Any) -> None:
    before = asked.scrape()
    asked.answer([[5, 6, 7]], made(max_tokens=4, n=3, temperature=1.0, seed=1))
    asked.answer([[8, 9], [10]], made(max_tokens=5))
    found = asked.scrape().since(before)
    assert found("request_success_total", finished_reason="length") == 3
    assert found("generation_tokens_total") == found("request_generation_tokens_sum") == 22
    assert found("request_max_num_generation_tokens_sum") == 14, "of n the longest counts"
    assert found("request_params_n_sum") == 5 and found("request_params_n_count") == 3
    assert found("request_params_max_tokens_sum") == 14
    assert found("prompt_tokens_total") == found("request_prompt_tokens_sum") == 6
    assert found("time_to_first_token_seconds_count") == 3
    assert found("inter_token_latency_seconds_count") == 3 * 3 + 2 * 4
    assert found("iteration_tokens_total_sum") == 6 + 22
    assert found("num_requests_running") == found("num_requests_waiting") == 0
    assert found("num_requests_waiting_by_reason", reason="capacity") == 0
    assert found("kv_cache_usage_perc") == 0
    states = [found("engine_sleep_state", sleep_state=name) for name in ("awake", "discard_all")]
    assert states == [1, 0]


@pytest.mark.parametrize("kind", [LLM, pytest.param(AsyncLLM, marks=pytest.mark.accept)])
def test_sleep_is_told(kind: Any, start: Callable[..., Any]) -> None:
    with start(kind, distributed_executor_backend=None, platform="null") as asked:

        def states() -> list[float]:
            found, names = asked.scrape(), ("awake", "weights_offloaded", "discard_all")
            return [found("engine_sleep_state", sleep_state=name) for name in names]

        def call(name: str, *values: Any) -> None:
            answer = getattr(asked.engine, name)(*values)
            if kind is AsyncLLM:
                asked.run(answer)

        assert states() == [1, 0, 0]
        for level, expected in ((1, [0, 1, 0]), (2, [0, 0, 1])):
            call("sleep", level)
            assert states() == expected
        call("wake_up")
        assert states() == [1, 0, 0]


def test_the_times_of_a_request_sum_to_the_whole(asked: Any) -> None:
    before = asked.scrape()
    asked.answer([[5], [6]], made(max_tokens=MADE))
    found = asked.scrape().since(before)
    sums = {name: found(f"request_{name}_time_seconds_sum") for name in PHASES}
    assert [found(f"request_{name}_time_seconds_count") for name in PHASES] == [2] * 4
    assert sums["inference"] == pytest.approx(sums["prefill"] + sums["decode"])
    whole = found("e2e_request_latency_seconds_sum")
    parts = sums["queue"] + sums["inference"]
    assert 0 < parts <= whole + 0.002 and whole - parts < 0.5
    between = found("inter_token_latency_seconds_sum")
    assert between == pytest.approx(sums["decode"], abs=1e-6)
    each = found("request_time_per_output_token_seconds_sum")
    assert each == pytest.approx(sums["decode"] / (MADE - 1), abs=1e-6)


def test_hits_of_the_cache_are_counted_through_a_reset(asked: Any) -> None:
    prompt, params = list(range(5, 38)), made(max_tokens=2)
    before = asked.scrape()
    asked.answer([prompt], params)
    asked.answer([prompt], params)
    found = asked.scrape().since(before)
    assert found("prefix_cache_queries_total") == 66
    assert found("prefix_cache_hits_total") == found("prompt_tokens_cached_total") == 32
    assert found("prompt_tokens_by_source_total", source="local_cache_hit") == 32
    assert found("prompt_tokens_by_source_total", source="local_compute") == 34
    assert found("request_prefill_kv_computed_tokens_sum") == 34
    done = asked.engine.reset_prefix_cache()
    assert done is True or asked.run(done) is True
    asked.answer([prompt], params)
    found = asked.scrape().since(before)
    assert found("prefix_cache_queries_total") == 99
    assert found("prefix_cache_hits_total") == 32


def test_preemptions_are_counted(start: Callable[..., Any]) -> None:
    prompts = [list(range(5, 21)), list(range(30, 46))]
    room = {"num_gpu_blocks_override": 6, "max_model_len": 64, "watermark": 0.0}
    with start(LLM, **room) as asked:
        asked.answer(prompts, made(max_tokens=40))
        found = asked.scrape()
    total = found("num_preemptions_total")
    assert total > 0 and found("request_num_preemptions_sum") == total
    assert found("request_num_preemptions_count") == 2
    assert found("generation_tokens_total") == 80


def test_requests_that_nobody_waits_for_are_counted_once(serving: Any) -> None:
    """Readers that leave, deadlines, and aborts by id."""
    engine, params, before = serving.engine, made(max_tokens=4000), serving.scrape()

    async def read(limit: int, **more: Any) -> None:
        stream = await engine.add([5, 6, 7], params, **more)
        seen = 0
        async for _ in stream:
            seen += 1
            if seen == limit:
                break
        stream.close()

    async def all_of_them() -> None:
        never = await engine.add([5, 6, 7], params, "never read")
        await asyncio.gather(read(2), read(2), read(-1, deadline=0.05))
        await engine.abort("never read")
        never.close()
        while engine.latest_stats.running + engine.latest_stats.waiting:
            await asyncio.sleep(0.01)

    serving.run(all_of_them())
    found = serving.scrape().since(before)
    assert found("request_success_total", finished_reason="abort") == 4
    assert found("e2e_request_latency_seconds_count") == 4
    assert found("request_generation_tokens_sum") == found("generation_tokens_total") < 16000
    assert found("num_requests_running") == 0


def test_requests_that_end_with_the_engine_are_errors(start: Callable[..., Any]) -> None:
    async def die(engine: AsyncLLM) -> None:
        streams = [await engine.add([5, 6, 7], made(max_tokens=4000)) for _ in range(3)]
        os.kill(engine.client.pid, signal.SIGKILL)
        for stream in streams:
            with pytest.raises(EngineDeadError):
                async for _ in stream:
                    pass

    with start(AsyncLLM) as dying:
        dying.run(die(dying.engine))
        found = dying.scrape()
    assert found("request_success_total", finished_reason="error") == 3
    assert found("request_success_total", finished_reason="abort") == 0
    assert found("num_requests_running") == found("kv_cache_usage_perc") == 0
