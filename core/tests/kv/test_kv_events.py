"""Events: a follower always has exactly what is cached, and can compute every hash it is told."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from pegboard.api.connector import KVTransferConfig
from pegboard.api.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from pegboard.api.kv import FullAttentionSpec, KVCacheConfig, KVSlot
from pegboard.api.params import SamplingParams
from pegboard.api.views import EngineRequest
from pegboard.kv import Allocation, BlockHasher, BlockPool, KVManager, KVRequest, form_groups
from pegboard.kv.events import EventLog
from pegboard.plugins import build_board
from pegboard.testing.connectors import SCRIPTED_CONNECTOR
from pegboard.testing.scripted_connector import Script
from pegboard.testing.toy import ToyExecutor
from pegboard.testing.toy_connected import connected_engine
from pegboard.testing.toy_engine import ToyEngine, toy_request
from pegboard.testing.toy_kinds import TOY_KINDS
from pegboard.testing.toy_paged import Faults

ON = {"enable_kv_cache_events": True, "publisher": "a test"}


class Follower:
    """Keeps the set, and recomputes each hash from what the event says."""

    def __init__(self, unit: int) -> None:
        self.cached: set[tuple[int, bytes]] = set()
        self.seen = Counter[str]()
        self._hasher = BlockHasher(unit)

    def read(self, events: list[KVEvent]) -> None:
        for event in events:
            self.seen[type(event).__name__] += 1
            if isinstance(event, AllBlocksCleared):
                self.cached.clear()
                continue
            keys = {(event.group, value) for value in event.block_hashes}
            assert len(keys) == len(event.block_hashes), "a hash is told twice"
            if isinstance(event, BlockStored):
                assert not keys & self.cached, "stored what was there already"
                assert event.block_hashes == self.compute(event), "the hashes are of something else"
                self.cached |= keys
            else:
                assert keys <= self.cached, "removed what was not there"
                self.cached -= keys

    def compute(self, event: BlockStored) -> list[bytes]:
        """The hashes, from parent, tokens and extra keys."""
        extras = event.extra_keys[0] or ()
        salt = next((k for k in extras[event.adapter is not None :] if isinstance(k, str)), None)
        parent = event.parent_hash or self._hasher.root(event.adapter, salt)
        hashes: list[bytes] = []
        self._hasher.extend(
            hashes,
            len(event.token_ids) // self._hasher.block_size,
            parent,
            lambda start, stop: event.token_ids[start:stop],
        )
        span = event.block_size // self._hasher.block_size
        self.seen["spans" if span > 1 else "units"] += 1
        return hashes[span - 1 :: span]


def traffic(toy: ToyEngine, rng: random.Random, number: int) -> None:
    """Something happens to the engine: a request, an abort, a reset."""
    stem = [rng.randrange(3)] * rng.randrange(0, 100)
    prompt = stem + [rng.randrange(97) for _ in range(rng.randrange(1, 12))]
    if rng.random() < 0.3:
        salt, adapter = rng.choice([None, "tenant"]), rng.choice([None, "adapter"])
        toy.add(
            toy_request(str(number), prompt, rng.randrange(1, 6), cache_salt=salt, adapter=adapter)
        )
    if rng.random() < 0.05:
        toy.abort(rng.choice(list(toy.told) or ["nobody"]))
    if rng.random() < 0.02:
        toy.scheduler.reset_prefix_cache()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    ("kinds", "blocks"),
    [
        ("full", 40),
        ("sliding and full", 100),
        ("chunked and full", 100),
        ("state and full", 100),
        ("all that have hits", 200),
    ],
)
def test_a_follower_has_exactly_what_is_cached_after_every_step(
    kinds: str, blocks: int, depth: int
) -> None:
    toy = ToyEngine(
        blocks,
        executor=ToyExecutor(specs=TOY_KINDS[kinds]),
        depth=depth,
        check=False,
        block_size=8,
        max_num_batched_tokens=64,
        kv_events_config=ON,
    )
    unit = toy.scheduler.prefix_match_unit
    follower, rng, lengths = Follower(unit), random.Random(kinds + str(depth)), set()
    for number in range(500):
        traffic(toy, rng, number)
        toy.step()
        follower.read(toy.scheduler.take_events())
        assert follower.cached == toy.cached(), f"step {number}"
        lengths.add(len(follower.cached))
    toy.run()
    assert toy.scheduler.reset_prefix_cache()
    follower.read(toy.scheduler.take_events())
    assert follower.cached == toy.cached() == set()
    for event, least in (("BlockStored", 100), ("BlockRemoved", 20), ("AllBlocksCleared", 1)):
        assert follower.seen[event] >= least, f"{event} came {follower.seen[event]} times only"
    assert max(lengths) > 20
    if kinds == "all that have hits":
        assert follower.seen["spans"] > 20, "no state was told with the tokens since its last one"
        assert follower.seen["units"] > 20


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kinds", ["full", "sliding and full", "state and full"])
def test_a_follower_stays_exact_while_a_connector_brings_blocks(kinds: str, depth: int) -> None:
    board = build_board(environ={"VLLM_PLUGINS": ""}, extra=[("connector", SCRIPTED_CONNECTOR)])
    script = Script(outcomes=("now", "later", "pending"))
    config = KVTransferConfig(
        kv_connector="scripted",
        kv_connector_extra_config={"script": script},
        kv_load_failure_policy="recompute",
    )
    faults = Faults(spoils=lambda load, piece: (load.load_id + piece.entry) % 7 == 0)
    toy = connected_engine(
        board,
        config,
        kinds=kinds,
        blocks=60,
        faults=faults,
        depth=depth,
        check=False,
        block_size=8,
        max_num_batched_tokens=64,
        kv_events_config=ON,
    )
    follower, rng = Follower(toy.scheduler.prefix_match_unit), random.Random(kinds + str(depth))
    for number in range(400):
        traffic(toy, rng, number)
        toy.step()
        follower.read(toy.scheduler.take_events())
        assert follower.cached == toy.cached(), f"step {number}"
    toy.run()
    follower.read(toy.scheduler.take_events())
    assert follower.cached == toy.cached()
    assert script.counts["loaded"] > 100, "hardly anything came from outside"
    assert script.counts["now"] > 5 and script.counts["later"] > 5
    assert follower.seen["BlockRemoved"] >= 20


def make(blocks: int = 20, events: bool = True, caching: bool = True) -> KVManager:
    slots = [KVSlot(0, "self", FullAttentionSpec(1, 2, "float32"))]
    cache = KVCacheConfig(form_groups(slots, 16), blocks)
    return KVManager(cache, caching=caching, events=events)


def compute(kv: KVManager, tokens: int, **fields: object) -> KVRequest:
    """A request whose first `tokens` tokens are computed, hits included."""
    ids = list(range(tokens))
    request = kv.open(EngineRequest("r", ids, SamplingParams(), seed=0, **fields))  # type: ignore[arg-type]
    hit = kv.match(request, tokens - 1)
    assert kv.allocate(Allocation(request, hit.tokens, tokens - hit.tokens, given=hit)) is not None
    kv.commit(request, tokens)
    return request


def test_blocks_are_told_when_they_are_committed_as_one_run() -> None:
    kv = make()
    request = kv.open(EngineRequest("r", list(range(60)), SamplingParams(), seed=0))
    kv.allocate(Allocation(request, 0, 60))
    assert kv.take_events() == []
    kv.commit(request, 37)
    first, second = request.hashes[:2]
    assert kv.take_events() == [
        BlockStored([first, second], None, list(range(32)), 16, 0, "full", extra_keys=[None, None])
    ]
    kv.commit(request, 47)
    assert kv.take_events() == []
    kv.commit(request, 60)
    third = request.hashes[2]
    assert kv.take_events() == [
        BlockStored([third], second, list(range(32, 48)), 16, 0, "full", extra_keys=[None])
    ]


def test_equal_content_is_told_once_and_removed_with_its_last_block() -> None:
    kv = make()
    one = kv.open(EngineRequest("a", list(range(16)), SamplingParams(), seed=0))
    two = kv.open(EngineRequest("b", list(range(16)), SamplingParams(), seed=0))
    for request in (one, two):
        kv.allocate(Allocation(request, 0, 16))
    for request in (one, two):
        kv.commit(request, 16)
    assert [type(event) for event in kv.take_events()] == [BlockStored]
    kv.evict([one.tables[0][0].id])
    assert kv.take_events() == []
    kv.evict([two.tables[0][0].id])
    assert kv.take_events() == [BlockRemoved([two.hashes[0]], 0)]


def test_content_lost_to_another_request_is_told_tail_first() -> None:
    kv = make(blocks=4)
    first = compute(kv, 48)
    kv.free(first)
    kv.take_events()
    other = kv.open(EngineRequest("o", [9] * 32, SamplingParams(), seed=0))
    kv.allocate(Allocation(other, 0, 32))
    assert kv.take_events() == [BlockRemoved([first.hashes[2], first.hashes[1]], 0)]


def test_a_reset_is_told_once_and_a_refused_one_is_not() -> None:
    kv = make()
    request = compute(kv, 40)
    kv.take_events()
    assert not kv.reset()
    assert kv.take_events() == []
    kv.free(request)
    assert kv.reset()
    assert kv.take_events() == [AllBlocksCleared()]


def test_each_hash_names_what_it_covers_beside_tokens() -> None:
    kv = make()
    compute(kv, 48, adapter="poet", cache_salt="tenant", media=[(10, 10, b"\1\2"), (30, 2, b"\3")])
    (event,) = kv.take_events()
    assert isinstance(event, BlockStored)
    assert event.adapter == "poet"
    assert event.extra_keys == [
        ("poet", (b"\1\2", 10), "tenant"),
        ("poet", (b"\1\2", -6), (b"\3", 14)),
        ("poet",),
    ]


@pytest.mark.parametrize(("events", "caching"), [(False, True), (True, False)])
def test_nothing_is_told_without_followers_or_without_a_cache(events: bool, caching: bool) -> None:
    kv = make(events=events, caching=caching)
    kv.free(compute(kv, 40))
    assert kv.take_events() == []


def test_output_tokens_are_told_like_those_of_the_prompt() -> None:
    kv = make()
    request = kv.open(EngineRequest("r", list(range(10)), SamplingParams(), seed=0))
    request.output_ids += range(10, 40)
    kv.allocate(Allocation(request, 0, 32))
    kv.commit(request, 32)
    (event,) = kv.take_events()
    assert isinstance(event, BlockStored)
    assert event.token_ids == list(range(32))


def test_the_log_notices_keys_of_no_request() -> None:
    log = EventLog(make().groups, 16)
    pool = BlockPool(3, log)
    (block,) = pool.take(1)
    pool.file(block, (0, b"somebody's"))
    with pytest.raises(AssertionError, match="whose"):
        pool.evict_blocks([block.id])
