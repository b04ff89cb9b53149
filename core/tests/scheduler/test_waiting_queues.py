"""Waiting queues against naive models of them."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from pegboard.api.kv import FullAttentionSpec, KVCacheConfig, KVGroup
from pegboard.api.views import EngineRequest
from pegboard.kv import Allocation, KVManager
from pegboard.scheduler.lpm import LOOKED_AT, PrefixQueue
from pegboard.scheduler.queue import SortedQueue, WaitingQueue, by_arrival, by_priority
from pegboard.scheduler.request import Request
from pegboard.testing.toy_engine import toy_request

BLOCK = 16


def manager(blocks: int = 200) -> KVManager:
    group = KVGroup(0, FullAttentionSpec(1, 2, "float32"), BLOCK, ("0.self",))
    return KVManager(KVCacheConfig((group,), blocks))


def make(kv: KVManager, order: int, prompt: list[int], priority: int = 0) -> Request:
    origin: EngineRequest = toy_request(str(order), prompt, priority=priority)
    return Request.make(origin, kv.open(origin), order)


def drain(queue: WaitingQueue, running: Iterable[Request] = ()) -> list[int]:
    """Orders of those admitted in one step, if there is room for all."""
    queue.arrange(list(running))
    taken = []
    while (request := queue.peek()) is not None:
        queue.remove(request)
        taken.append(request.order)
    return taken


# Fixed orders


@pytest.mark.parametrize("rank", [by_arrival, by_priority])
@pytest.mark.parametrize("seed", range(8))
def test_any_sequence_of_pushes_and_removals_agrees_with_a_sorted_list(rank, seed) -> None:  # type: ignore[no-untyped-def]
    rng, kv = random.Random(seed), manager()
    queue, model, aside = SortedQueue(rank), [], []
    everyone = [make(kv, order, [1], rng.randrange(-3, 4)) for order in range(40)]
    passed = 0
    for _ in range(1500):
        action = rng.choice(["push", "push", "remove", "next", "aside", "arrange"])
        absent = [request for request in everyone if request not in model]
        ready = sorted((r for r in model if r not in aside), key=rank)
        if action == "push" and absent:
            model.append(rng.choice(absent))
            queue.push(model[-1])
        elif action == "remove" and model:
            gone = rng.choice(model)
            queue.remove(gone)
            model.remove(gone)
            aside = [request for request in aside if request is not gone]
        elif action == "next" and ready:
            queue.remove(ready[0])
            model.remove(ready[0])
        elif action == "aside" and ready:
            queue.set_aside(ready[0])
            aside.append(ready[0])
            passed += 1
        elif action == "arrange":
            queue.arrange([])
            aside = []
        ready = sorted((r for r in model if r not in aside), key=rank)
        assert queue.peek() is (ready[0] if ready else None)
        assert len(queue) == len(model)
        assert set(queue) == set(model)
        assert len(queue._heap) <= len(everyone), "stale entries pile up"
    assert passed > 50


def test_a_lower_value_comes_first_and_equal_ones_in_order_of_arrival() -> None:
    kv, queue = manager(), SortedQueue(by_priority)
    for order, priority in enumerate([5, -1, 0, 5, -1, 2**40]):
        queue.push(make(kv, order, [1], priority))
    assert drain(queue) == [1, 4, 2, 0, 3, 5]


# Longest prefix match


class Cache:
    """A manager in which prompts can be put, and a naive model of what is in it."""

    def __init__(self) -> None:
        self.kv = manager()
        self.prompts: list[list[int]] = []

    def put(self, prompt: list[int]) -> None:
        origin = toy_request(f"cached {len(self.prompts)}", prompt)
        books = self.kv.open(origin)
        assert self.kv.allocate(Allocation(books, 0, len(prompt))) is not None
        self.kv.commit(books, len(prompt))
        self.kv.free(books)
        self.prompts.append(prompt)

    def matched(self, prompt: list[int]) -> int:
        """Whole cached blocks, the last token left out."""
        return max((shared(prompt[:-1], other) for other in self.prompts), default=0)


def shared(one: list[int], other: list[int]) -> int:
    """Whole blocks at the beginning of both."""
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    return same // BLOCK


def expected(cache: Cache, waiting: list[Request], running: list[list[int]]) -> list[int]:
    """The order that the module's description promises, quadratic and plain."""
    chosen, ahead = [], [*running]
    for request in waiting:
        prompt = request.origin.prompt_ids
        matched = cache.matched(prompt)
        steps_back = any(shared(prompt[:-1], other[:-1]) >= matched + 2 for other in ahead)
        ahead.append(prompt)
        if not steps_back:
            chosen.append((-matched, request.order))
    return [order for _, order in sorted(chosen)]


@pytest.mark.parametrize("seed", range(30))
def test_lpm_agrees_with_a_plain_model(seed: int) -> None:
    rng, cache = random.Random(seed), Cache()
    stems = [[rng.randrange(90) for _ in range(120)] for _ in range(3)]

    def prompt() -> list[int]:
        tail = [rng.randrange(90) for _ in range(rng.randrange(1, 60))]
        return rng.choice(stems)[: rng.randrange(121)] + tail

    for _ in range(rng.randrange(4)):
        cache.put(prompt())
    queue = PrefixQueue(cache.kv)
    waiting = [make(cache.kv, order, prompt()) for order in range(rng.randrange(1, 25))]
    for request in rng.sample(waiting, len(waiting)):
        queue.push(request)
    assert drain(queue) == expected(cache, waiting, [])


def test_lpm_steps_back_behind_a_running_prompt_until_it_is_computed() -> None:
    cache = Cache()
    leader = make(cache.kv, 0, list(range(80)))
    cache.kv.match(leader.kv, leader.readable)
    follower = make(cache.kv, 1, [*range(70), 5])
    queue = PrefixQueue(cache.kv)
    queue.push(follower)
    leader.admit(0, 0)
    assert drain(queue, [leader]) == []
    leader.computed = 80
    assert drain(queue, [leader]) == [1]


def test_lpm_never_leaves_an_engine_idle() -> None:
    cache = Cache()
    queue = PrefixQueue(cache.kv)
    for order in range(5):
        queue.push(make(cache.kv, order, list(range(80))))
    assert drain(queue) == [0]


def test_lpm_puts_preempted_requests_first() -> None:
    cache = Cache()
    cache.put(list(range(64)))
    queue = PrefixQueue(cache.kv)
    hit, preempted = make(cache.kv, 0, list(range(70))), make(cache.kv, 1, [9] * 40)
    preempted.admit(0, 0)
    preempted.preempt()
    for request in (hit, preempted):
        queue.push(request)
    assert drain(queue) == [1, 0]


def test_lpm_is_the_order_of_arrival_beyond_a_number_of_waiting_requests() -> None:
    cache = Cache()
    cache.put(list(range(64)))
    queue = PrefixQueue(cache.kv)
    for order in range(LOOKED_AT):
        queue.push(make(cache.kv, order, [order % 90] * 3))
    best = make(cache.kv, LOOKED_AT, list(range(70)))
    queue.push(best)
    queue.arrange([])
    first = queue.peek()
    assert first is not None and first.order == 0
    queue.remove(first)
    queue.arrange([])
    assert queue.peek() is best


def test_lpm_without_a_cache_is_the_order_of_arrival() -> None:
    kv = manager()
    kv.caching = False
    queue = PrefixQueue(kv)
    for order in (2, 0, 1):
        queue.push(make(kv, order, list(range(80))))
    assert drain(queue) == [0, 1, 2]


def test_lpm_passes_over_for_one_step_only() -> None:
    cache = Cache()
    queue = PrefixQueue(cache.kv)
    for order in range(3):
        queue.push(make(cache.kv, order, [order] * 40))
    queue.arrange([])
    first = queue.peek()
    assert first is not None
    queue.set_aside(first)
    second = queue.peek()
    assert second is not None and (first.order, second.order) == (0, 1)
    assert drain(queue) == [0, 1, 2]
