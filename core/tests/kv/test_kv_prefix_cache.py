"""The prefix cache as a whole: what is given up first, who never shares, what is counted."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pegboard.api.kv import FullAttentionSpec, KVCacheConfig, KVSlot
from pegboard.api.params import SamplingParams
from pegboard.api.scheduler import CacheStats
from pegboard.api.views import EngineRequest
from pegboard.kv import Allocation, KVManager, KVRequest, form_groups

SIZE = 4


def make(blocks: int = 60) -> KVManager:
    slots = [KVSlot(0, "self", FullAttentionSpec(1, 2, "float32"))]
    return KVManager(KVCacheConfig(form_groups(slots, SIZE), blocks))


def compute(kv: KVManager, ids: list[int], **fields: object) -> KVRequest:
    request = kv.open(EngineRequest("r", ids, SamplingParams(), seed=0, **fields))  # type: ignore[arg-type]
    hit = kv.match(request, len(ids) - 1)
    want = Allocation(request, hit.tokens, len(ids) - hit.tokens, given=hit)
    assert kv.allocate(want) is not None
    kv.commit(request, len(ids))
    return request


def cached(kv: KVManager, ids: list[int], **fields: object) -> int:
    """Tokens of a prompt that are in the cache, the last one not counted."""
    request = kv.open(EngineRequest("r", ids, SamplingParams(), seed=0, **fields))  # type: ignore[arg-type]
    return kv.match(request, len(ids) - 1).tokens


def test_the_request_used_least_recently_loses_its_tail_first() -> None:
    kv = make(blocks=13)  # three prompts of four blocks
    prompts = {name: [value] * 4 * SIZE + [0] for value, name in enumerate("abc", 1)}
    for ids in prompts.values():
        kv.free(compute(kv, ids[:-1]))
    kv.free(compute(kv, prompts["a"][:-1]))  # so that b is the one used least recently
    lost = []
    for _ in range(9):
        before = {name: cached(kv, ids) for name, ids in prompts.items()}
        kv.pool.take(1)
        after = {name: cached(kv, ids) for name, ids in prompts.items()}
        changed = [name for name in prompts if before[name] != after[name]]
        assert len(changed) == 1
        assert after[changed[0]] == before[changed[0]] - SIZE, "not the last block went"
        lost += changed
    assert lost == list("bbbbcccca")


def test_a_beginning_that_is_shared_outlives_its_continuations() -> None:
    kv = make(blocks=8)
    stem = [1] * 2 * SIZE
    requests = [compute(kv, stem + [value] * 2 * SIZE) for value in (2, 3)]
    for request in requests:
        kv.free(request)
    kv.pool.take(5)  # one was free, four were the continuations'
    assert cached(kv, [*stem, 0]) == 2 * SIZE


@settings(max_examples=50, deadline=None)
@given(
    salts=st.lists(st.text("ab", max_size=2) | st.none(), min_size=2, max_size=4, unique=True),
    blocks=st.integers(1, 5),
)
def test_salted_tenants_share_no_block_at_all(salts: list[str | None], blocks: int) -> None:
    kv = make()
    ids = list(range(blocks * SIZE))
    held = [compute(kv, ids, cache_salt=salt) for salt in salts]
    names = [value for request in held for value in request.hashes]
    assert len(set(names)) == len(salts) * blocks, "two tenants have a hash in common"
    used = [block.id for request in held for block in request.tables[0]]
    assert len(set(used)) == len(salts) * blocks, "two tenants have a block in common"
    # Nor may a hash of one be the parent of another's: chains never meet again.
    for salt in salts:
        assert cached(kv, [*ids, 0], cache_salt=salt) == blocks * SIZE


def test_the_hit_rate_of_an_interval_counts_that_interval_only() -> None:
    kv = make()
    kv.count_query(100, 0)
    earlier = kv.stats()
    kv.count_query(40, 30)
    now = kv.stats()
    assert now.hit_rate == 30 / 140
    assert now.since(earlier).hit_rate == 30 / 40
    assert now.since(now) == CacheStats()
    assert now.since(now).hit_rate == 0


def test_an_interval_with_a_reset_begins_at_the_reset() -> None:
    kv = make()
    kv.count_query(10, 5)
    earlier = kv.stats()
    assert kv.reset()
    kv.count_query(100, 80)
    interval = kv.stats().since(earlier)
    assert interval == CacheStats(queried_tokens=100, hit_tokens=80, resets=1)


def test_evictions_are_counted_by_interval_too() -> None:
    kv = make(blocks=4)
    kv.free(compute(kv, [1] * 3 * SIZE))
    earlier = kv.stats()
    kv.pool.take(2)
    assert kv.stats().since(earlier).evicted_blocks == 2
