"""Prompts that take several steps: how many at once, how long ones are told from short ones."""

from __future__ import annotations

import pytest

from pegboard.api.views import EngineRequest
from pegboard.testing.toy import toy_generate
from pegboard.testing.toy_engine import ToyEngine, toy_request


def add(toy: ToyEngine, *lengths: int, max_tokens: int = 1) -> list[EngineRequest]:
    """One request per length; the first id of its prompt is its number."""
    requests = [
        toy_request(f"r{n}", [n, *range(20, 20 + length - 1)], max_tokens)
        for n, length in enumerate(lengths)
    ]
    for request in requests:
        toy.add(request)
    return requests


def finish(toy: ToyEngine, requests: list[EngineRequest]) -> None:
    toy.run()
    for request in requests:
        assert toy.told[request.request_id].token_ids == toy_generate(request)


def test_without_limits_one_prompt_takes_the_budget_after_the_other() -> None:
    toy = ToyEngine(max_num_batched_tokens=16)
    requests = add(toy, 40, 10)
    finish(toy, requests)
    assert [plan.counts for plan in toy.plans] == [[16], [16], [8, 8], [2]]


def test_prompts_at_once_share_the_budget_evenly() -> None:
    toy = ToyEngine(
        max_num_batched_tokens=16,
        max_num_partial_prefills=2,
        max_model_len=10_000,
        max_long_partial_prefills=2,
    )
    requests = add(toy, 20, 20)
    finish(toy, requests)
    assert [plan.counts for plan in toy.plans] == [[8, 8], [8, 8], [4, 4]]


def test_a_prompt_alone_takes_the_whole_budget() -> None:
    toy = ToyEngine(max_num_batched_tokens=16, max_num_partial_prefills=3, max_model_len=10_000)
    finish(toy, add(toy, 40))
    assert [plan.counts for plan in toy.plans] == [[16], [16], [8]]


def test_no_more_prompts_are_unfinished_at_once_than_allowed() -> None:
    most = 0
    toy = ToyEngine(
        max_num_batched_tokens=24,
        max_num_partial_prefills=2,
        max_long_partial_prefills=2,
        max_model_len=10_000,
    )
    requests = add(toy, *[50] * 6)
    while toy.scheduler.has_work():
        toy.step()
        plan = toy.plans[-1]
        most = max(most, sum(not sample for sample in plan.samples))
    assert most == 2
    finish(toy, requests)


def test_short_prompts_jump_the_queue_in_front_of_long_ones() -> None:
    toy = ToyEngine(
        max_num_batched_tokens=24,
        max_num_partial_prefills=2,
        max_long_partial_prefills=1,
        long_prefill_token_threshold=12,
    )
    requests = add(toy, 60, 60, 6, 6)
    toy.step()
    assert [row.prompt_ids[0] for row in toy.plans[0].new_rows] == [0, 2, 3]
    assert toy.plans[0].counts == [12, 6, 6]
    finish(toy, requests)


def test_passed_over_requests_keep_their_place() -> None:
    toy = ToyEngine(
        max_num_batched_tokens=24,
        max_num_partial_prefills=2,
        long_prefill_token_threshold=12,
        enable_prefix_caching=False,
    )
    requests = add(toy, 60, 60, 60)
    finish(toy, requests)
    begun = [row.prompt_ids[0] for plan in toy.plans for row in plan.new_rows]
    assert begun == [0, 1, 2]


def test_a_threshold_caps_a_long_prompt_per_step_also_when_it_is_alone() -> None:
    toy = ToyEngine(max_num_batched_tokens=64, long_prefill_token_threshold=20)
    requests = add(toy, 50, 15)
    finish(toy, requests)
    assert [plan.counts for plan in toy.plans] == [[20, 15], [20], [10]]


def test_a_prompt_whose_beginning_is_cached_is_as_long_as_what_is_left() -> None:
    toy = ToyEngine(
        max_num_batched_tokens=64, max_num_partial_prefills=2, long_prefill_token_threshold=20
    )
    for name in ("first", "again"):
        toy.add(toy_request(name, list(range(60)), 1))
        toy.run()
    long = toy_request("long", [90] * 60, 1)
    cached = toy_request("cached", list(range(60)), 1)
    toy.add(long)
    toy.add(cached)
    toy.step()
    assert toy.plans[-1].rows == 2, "the cached one is not long"
    finish(toy, [long, cached])


def test_long_is_a_share_of_the_context_where_no_threshold_is_set() -> None:
    toy = ToyEngine(
        max_num_batched_tokens=200,
        max_num_partial_prefills=2,
        max_model_len=1000,
        enable_prefix_caching=False,
    )
    requests = add(toy, 70, 70, 30)
    toy.step()
    assert [row.prompt_ids[0] for row in toy.plans[0].new_rows] == [0, 1, 2]
    assert toy.plans[0].counts == [70, 70, 30], (
        "what is done in one step is not at once with others"
    )
    finish(toy, requests)


@pytest.mark.parametrize("reserving", [True, False])
def test_the_whole_input_is_reserved_at_admission_unless_switched_off(reserving: bool) -> None:
    toy = ToyEngine(
        10,
        block_size=8,
        watermark=0.0,
        max_num_batched_tokens=16,
        enable_prefix_caching=False,
        scheduler_reserve_full_isl=reserving,
    )
    requests = [toy_request(name, [i] * 40, 10) for i, name in enumerate("ab")]
    for request in requests:
        toy.add(request)
    finish(toy, requests)
    assert (toy.scheduler.stats().preemptions > 0) is not reserving
    together = any(plan.rows == 2 for plan in toy.plans)
    assert together is not reserving
