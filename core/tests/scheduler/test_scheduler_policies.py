"""Who goes first and who gives way, as seen from outside; and that the tokens do not notice."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pegboard.api.views import EngineRequest
from pegboard.config.engine import POLICIES
from pegboard.errors import ResourceError
from pegboard.testing.toy import toy_generate
from pegboard.testing.toy_engine import ToyEngine, toy_request


def prompt(tokens: int, first: int = 0) -> list[int]:
    return [(first + i) % 97 for i in range(tokens)]


def admissions(toy: ToyEngine) -> list[int]:
    """First prompt ids of the requests that got a slot, in order."""
    return [row.prompt_ids[0] for plan in toy.plans for row in plan.new_rows]


def assert_texts(toy: ToyEngine, requests: list[EngineRequest]) -> None:
    for request in requests:
        assert toy.told[request.request_id].token_ids == toy_generate(request), request.request_id


# Priority


def test_the_lowest_value_is_admitted_first_and_equal_ones_by_arrival() -> None:
    toy = ToyEngine(max_num_seqs=1, scheduling_policy="priority")
    for number, priority in enumerate([3, 0, -5, 0]):
        toy.add(toy_request(str(number), [number, 1], 2, priority=priority))
    toy.run()
    assert admissions(toy) == [2, 1, 3, 0]


def test_a_running_request_is_not_pushed_out_by_one_that_only_waits_for_a_slot() -> None:
    toy = ToyEngine(max_num_seqs=1, scheduling_policy="priority")
    toy.add(toy_request("low", [1], 6, priority=9))
    toy.step()
    toy.add(toy_request("high", [2], 2, priority=0))
    toy.run()
    assert toy.scheduler.stats().preemptions == 0
    assert admissions(toy) == [1, 2]


def test_when_blocks_are_short_the_lowest_priority_gives_way_whenever_it_came() -> None:
    toy = ToyEngine(
        9, block_size=8, watermark=0.0, enable_prefix_caching=False, scheduling_policy="priority"
    )
    requests = [
        toy_request("low", prompt(20, 50), 20, priority=5),
        toy_request("high", prompt(20, 10), 20, priority=1),
    ]
    for request in requests:
        toy.add(request)
    toy.run()
    resumed = [row.prompt_ids[0] for p in toy.plans for row in p.new_rows if row.output_ids]
    assert resumed and set(resumed) == {50}, "only the low one was preempted"
    assert_texts(toy, requests)


def test_a_preempted_request_keeps_its_place_vllm_41951() -> None:
    """It comes back before others of its priority that arrived later, and after higher ones."""
    toy = ToyEngine(
        9, block_size=8, watermark=0.0, enable_prefix_caching=False, scheduling_policy="priority"
    )
    first = [
        toy_request("first", prompt(20, 10), 20, priority=0),
        toy_request("second", prompt(20, 50), 20, priority=3),
    ]
    for request in first:
        toy.add(request)
    while not toy.scheduler.stats().preemptions:
        toy.step()
    seen = len(toy.plans)
    later = [
        toy_request("later", prompt(20, 30), 20, priority=3),
        toy_request("higher", prompt(20, 70), 20, priority=2),
    ]
    for request in later:
        toy.add(request)
    toy.run()
    after = [row.prompt_ids[0] for plan in toy.plans[seen:] for row in plan.new_rows]
    begun = list(dict.fromkeys(after))
    assert begun == [70, 50, 30]
    assert_texts(toy, first + later)


def test_budget_goes_to_the_highest_priority_first() -> None:
    toy = ToyEngine(max_num_batched_tokens=16, scheduling_policy="priority")
    toy.add(toy_request("low", prompt(40, 3), 2, priority=1))
    toy.step()
    toy.add(toy_request("high", prompt(8, 60), 1, priority=0))
    toy.step()
    assert toy.plans[1].counts == [16], "it runs already, and a waiting one comes after it"
    toy.run()
    assert_texts(toy, [toy_request("low", prompt(40, 3), 2)])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_that_can_never_fit_is_refused_at_once_under_every_policy(policy: str) -> None:
    toy = ToyEngine(5, scheduling_policy=policy, max_num_partial_prefills=2)
    toy.add(toy_request("a", prompt(10), 4))
    with pytest.raises(ResourceError, match="holds 64"):
        toy.add(toy_request("b", prompt(50), 16, priority=-9))
    assert toy.run()["a"].token_ids == toy_generate(toy_request("a", prompt(10), 4))


# Longest prefix match


def test_lpm_admits_what_is_cached_before_it_is_evicted() -> None:
    hits = {}
    for policy in ("fcfs", "lpm"):
        toy = ToyEngine(13, block_size=8, max_num_seqs=1, watermark=0.0, scheduling_policy=policy)
        stems = [prompt(64, 10 * n) for n in range(3)]
        toy.add(toy_request("warm", [*stems[0], 1], 1))
        toy.run()
        requests = [
            toy_request(f"{turn}.{n}", [*stem, turn + 2], 1)
            for turn in range(3)
            for n, stem in reversed(list(enumerate(stems)))
        ]
        for request in requests:
            toy.add(request)
        toy.run()
        assert_texts(toy, requests)
        cache = toy.scheduler.stats().cache
        told = sum(toy.told[r.request_id].last.cached_tokens for r in requests)  # type: ignore[union-attr]
        assert cache.hit_tokens == told, "the whole is the sum of the requests"
        assert cache.queried_tokens == 10 * 65
        assert cache.hit_rate == cache.hit_tokens / cache.queried_tokens
        hits[policy] = cache.hit_tokens
    assert hits["fcfs"] == 0, "under pressure, one stem pushes the other out"
    assert hits["lpm"] == 7 * 64, "each stem is computed once"


def test_lpm_computes_a_common_beginning_once_though_the_budget_would_reach_for_both() -> None:
    computed = {}
    for policy in ("fcfs", "lpm"):
        toy = ToyEngine(scheduling_policy=policy)
        requests = [toy_request(str(n), [*prompt(100), n], 1) for n in range(4)]
        for request in requests:
            toy.add(request)
        toy.run()
        assert_texts(toy, requests)
        computed[policy] = toy.executor.counts.tokens
    assert computed == {"fcfs": 4 * 101, "lpm": 101 + 3 * 5}


def test_lpm_lets_others_pass_while_a_request_steps_back() -> None:
    toy = ToyEngine(scheduling_policy="lpm")
    toy.add(toy_request("leader", [*prompt(100), 1], 1))
    toy.add(toy_request("follower", [*prompt(100), 2], 1))
    toy.add(toy_request("other", [90, 91], 1))
    toy.step()
    assert [row.prompt_ids[-1] for row in toy.plans[0].new_rows] == [1, 91]
    toy.run()
    assert toy.plans[1].starts == [96]


def test_lpm_goes_on_when_the_one_that_others_wait_for_is_aborted() -> None:
    toy = ToyEngine(scheduling_policy="lpm", max_num_batched_tokens=16)
    requests = [toy_request(str(n), [*prompt(100), n], 1) for n in range(3)]
    for request in requests:
        toy.add(request)
    toy.step()
    assert toy.plans[0].rows == 1
    toy.abort("0")
    toy.run()
    assert_texts(toy, requests[1:])


# The tokens


@pytest.mark.parametrize("depth", [1, 2])
def test_every_policy_gives_the_tokens_of_fcfs_with_preemption(depth: int) -> None:
    rng = random.Random(4)
    stems = [[rng.randrange(90) for _ in range(60)] for _ in range(3)]
    requests = [
        toy_request(
            str(number),
            [*rng.choice(stems)[: rng.randrange(61)], *(rng.randrange(90) for _ in range(9))],
            rng.randrange(1, 30),
            priority=rng.randrange(4),
        )
        for number in range(24)
    ]
    texts: dict[str, Any] = {}
    for policy in POLICIES:
        toy = ToyEngine(24, block_size=8, depth=depth, watermark=0.0, scheduling_policy=policy)
        for request in requests:
            toy.add(request)
        texts[policy] = {name: told.token_ids for name, told in toy.run().items()}
        stats = toy.scheduler.stats()
        assert stats.preemptions > 0, policy
        assert stats.cache.hit_tokens > 0, policy
    assert texts["priority"] == texts["lpm"] == texts["fcfs"]
    assert_texts(toy, requests)
