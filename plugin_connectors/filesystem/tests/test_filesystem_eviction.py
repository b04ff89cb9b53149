"""Eviction policies against the algorithms as published, and the index against its budget."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest

from pegboard_connector_filesystem.eviction import ARC, LRU, Eviction, make_eviction
from pegboard_connector_filesystem.index import FORGOTTEN, Index
from pegboard_connector_filesystem.messages import Found


class Cache:
    """A policy with room for `capacity` bytes."""

    def __init__(self, policy: Eviction, capacity: int) -> None:
        self.policy, self.capacity = policy, capacity
        self.held: dict[str, int] = {}
        self.hits = 0

    def ask(self, key: str, size: int = 1) -> None:
        if key in self.held:
            self.hits += 1
            self.policy.touch(key)
            return
        self.policy.expect(key, size)
        while sum(self.held.values()) + size > self.capacity:
            victim = self.policy.evict(key, ())
            assert victim is not None
            del self.held[victim]
        self.policy.insert(key, size)
        self.held[key] = size


class PublishedARC:
    """The algorithm of the paper, page by page; the most recent page is last in each list."""

    def __init__(self, c: int) -> None:
        self.c, self.p = c, 0.0
        self.t1, self.t2, self.b1, self.b2 = (OrderedDict[str, None]() for _ in range(4))

    def replace(self, x: str) -> None:
        n = len(self.t1)
        if n >= 1 and ((x in self.b2 and n == self.p) or n > self.p):
            self.b1[self.t1.popitem(last=False)[0]] = None
        else:
            self.b2[self.t2.popitem(last=False)[0]] = None

    def ask(self, x: str) -> None:
        if x in self.t1 or x in self.t2:
            self.t1.pop(x, None)
            self.t2.pop(x, None)
            self.t2[x] = None
        elif x in self.b1:
            self.p = min(self.c, self.p + max(len(self.b2) / len(self.b1), 1))
            self.replace(x)
            del self.b1[x]
            self.t2[x] = None
        elif x in self.b2:
            self.p = max(0, self.p - max(len(self.b1) / len(self.b2), 1))
            self.replace(x)
            del self.b2[x]
            self.t2[x] = None
        else:
            self.miss(x)

    def miss(self, x: str) -> None:
        first = len(self.t1) + len(self.b1)
        total = first + len(self.t2) + len(self.b2)
        if first == self.c:
            if len(self.t1) < self.c:
                self.b1.popitem(last=False)
                self.replace(x)
            else:
                self.t1.popitem(last=False)
        elif total >= self.c:
            if total == 2 * self.c:
                self.b2.popitem(last=False)
            self.replace(x)
        self.t1[x] = None


def trace(seed: int, length: int = 3000) -> list[str]:
    """Some keys often, some once, in phases."""
    draws = random.Random(seed)
    return [
        str(draws.randrange(8) if draws.random() < 0.4 else draws.randrange(10, 40) + i // 600 * 7)
        for i in range(length)
    ]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("capacity", [1, 2, 7, 16])
def test_arc_with_equal_sizes_is_the_published_algorithm(seed: int, capacity: int) -> None:
    policy, reference = ARC(capacity), PublishedARC(capacity)
    cache = Cache(policy, capacity)
    for number, key in enumerate(trace(seed)):
        cache.ask(key)
        reference.ask(key)
        assert set(cache.held) == {*reference.t1, *reference.t2}, f"request {number}, key {key}"
        assert policy.target == reference.p, f"request {number}, key {key}"


@pytest.mark.parametrize("seed", range(3))
def test_lru_keeps_the_last_used(seed: int) -> None:
    cache, order = Cache(LRU(), 9), OrderedDict[str, None]()
    for key in trace(seed):
        cache.ask(key)
        order.pop(key, None)
        order[key] = None
        assert set(cache.held) == set(list(order)[-9:])


def test_a_scan_of_new_keys_pushes_out_what_is_used_often_with_lru_but_not_with_arc() -> None:
    hits = {}
    for name in ("lru", "arc"):
        cache = Cache(make_eviction(name, 20), 20)
        for turn in range(40):
            for _ in range(2):
                for key in range(10):
                    cache.ask(f"hot {key}")
            for key in range(30):
                cache.ask(f"scan {turn} {key}")
        hits[name] = cache.hits
    assert hits == {"lru": 40 * 10, "arc": 40 * 20 - 10}


@pytest.mark.parametrize("name", ["lru", "arc"])
def test_sizes_may_differ(name: str) -> None:
    draws = random.Random(1)
    sizes = {str(n): draws.randrange(1, 30) for n in range(80)}
    cache = Cache(make_eviction(name, 100), 100)
    for key in trace(3):
        cache.ask(key, sizes[key])
        assert sum(cache.held.values()) <= 100


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def make_index(name: str = "lru", capacity: int = 100, clock: Clock | None = None) -> Index:
    return Index(capacity, make_eviction(name, capacity), clock or Clock())


def put(index: Index, name: str, size: int = 10) -> list[str] | None:
    victims = index.reserve(name, size)
    if victims is not None:
        assert index.store(name)
        for victim in victims:
            index.removed(victim)
    return victims


def test_room_is_made_by_evicting_the_least_recently_used() -> None:
    index = make_index()
    for n in range(10):
        assert put(index, str(n)) == []
    index.use(["0"])
    index.free(["0"])
    assert put(index, "new", 15) == ["1", "2"]
    assert index.bytes == 95 and index.evictions == 2


def test_files_that_are_being_read_stay() -> None:
    index = make_index(capacity=30)
    for n in range(3):
        put(index, str(n))
    index.use(["0", "1", "0"])
    index.free(["0"])
    assert put(index, "a") == ["2"]
    index.use(["a"])
    assert index.reserve("b", 10) is None, "nothing may go"
    assert sorted(index.names()) == ["0", "1", "a"]
    index.free(["0"])
    assert put(index, "b") == ["0"]


def test_room_on_its_way_counts() -> None:
    index = make_index(capacity=30)
    assert index.reserve("a", 20) == []
    assert index.reserve("a", 20) is None, "it is on its way"
    assert index.reserve("b", 20) is None, "there is no room"
    assert "a" not in index, "it is not there yet"
    index.cancel("a")
    assert put(index, "b", 20) == []


def test_a_file_larger_than_the_budget_evicts_nothing() -> None:
    index = make_index()
    put(index, "a")
    assert index.reserve("b", 101) is None
    assert "a" in index


def test_a_victim_is_not_saved_again_before_it_is_removed() -> None:
    index = make_index(capacity=10)
    put(index, "a")
    assert index.reserve("b", 10) == ["a"]
    index.cancel("b")
    assert index.reserve("a", 10) is None
    index.removed("a")
    assert index.reserve("a", 10) == []


def test_a_list_of_the_folder_replaces_what_was_known() -> None:
    index = make_index()
    for name in ("kept", "removed by another", "just stored"):
        put(index, name)
    assert index.reserve("coming", 10) == []
    listed = [Found("new", 10, 5), Found("older", 10, 3), Found("kept", 10, 0)]
    listed += [Found("coming", 10, 9), Found("just removed", 10, 9)]
    new, gone = index.listed(listed, stored={"just stored"}, removed={"just removed"})
    assert (new, gone) == (["older", "new"], ["removed by another"])
    assert sorted(index.names()) == ["just stored", "kept", "new", "older"]
    assert index.bytes == 50


def test_what_another_engine_loads_is_recent_here_too() -> None:
    index = make_index(capacity=30)
    index.listed([Found("a", 10, 1), Found("b", 10, 2), Found("c", 10, 3)])
    index.listed([Found("a", 10, 9), Found("b", 10, 2), Found("c", 10, 3)])
    assert put(index, "d") == ["b"]


def test_a_smaller_budget_after_a_restart_is_kept_by_removing_the_oldest() -> None:
    index = make_index(capacity=25)
    index.listed([Found(str(n), 10, n) for n in range(5)])
    assert index.overflow() == ["0", "1", "2"]
    assert index.bytes == 20
    assert index.listed([Found("0", 10, 0), Found("3", 10, 3), Found("4", 10, 4)]) == ([], [])


def test_reports_that_never_come_block_nothing_for_ever() -> None:
    clock = Clock()
    index = make_index(capacity=10, clock=clock)
    assert index.reserve("a", 10) == []
    clock.now = FORGOTTEN + 1
    index.sweep()
    assert index.bytes == 0
    assert not index.store("a"), "it is not expected any more"
    assert index.reserve("b", 10) == []


@pytest.mark.parametrize("name", ["lru", "arc"])
def test_random_operations_keep_the_budget_and_the_books(name: str) -> None:
    draws, index = random.Random(7), make_index(name, 200)
    coming: dict[str, int] = {}
    used: list[str] = []
    for _ in range(5000):
        key, action = str(draws.randrange(60)), draws.randrange(6)
        if action < 2:
            victims = index.reserve(key, size := draws.randrange(1, 40))
            if victims is not None:
                coming[key] = size
                assert not {*victims} & {*used}, "a file in use was evicted"
                for victim in victims:
                    index.removed(victim)
        elif action == 2 and coming:
            key = draws.choice(sorted(coming))
            coming.pop(key)
            index.store(key) if draws.random() < 0.8 else index.cancel(key)
        elif action == 3 and key in index and len(used) < 3:
            index.use([key])
            used.append(key)
        elif action == 4 and used:
            index.free([used.pop()])
        elif action == 5 and draws.random() < 0.2 and key not in used:
            index.gone(key)
        assert 0 <= index.bytes <= 200
    index.free(used)
    for key in coming:
        index.cancel(key)
    for key in index.names():
        index.gone(key)
    assert index.bytes == 0 and len(index) == 0
