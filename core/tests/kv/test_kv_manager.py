"""The KV manager: hits, allocation, sharing and forks, without a scheduler."""

from __future__ import annotations

import pytest

from pegboard.api.kv import FullAttentionSpec, KVCacheConfig, KVSlot
from pegboard.api.params import SamplingParams
from pegboard.api.views import EngineRequest
from pegboard.errors import UnsupportedError
from pegboard.kv import Allocation, KVManager, KVRequest, form_groups


def make(blocks: int = 20, groups: int = 1, size: int = 16, caching: bool = True) -> KVManager:
    slots = [
        KVSlot(i, "self", FullAttentionSpec(1 << i, 1 << (groups - i), "float32"))
        for i in range(groups)
    ]
    return KVManager(KVCacheConfig(form_groups(slots, size), blocks), caching=caching)


def open_request(kv: KVManager, tokens: int, **fields: object) -> KVRequest:
    ids = list(range(tokens))
    return kv.open(EngineRequest("r", ids, SamplingParams(), seed=0, **fields))  # type: ignore[arg-type]


def compute(kv: KVManager, request: KVRequest, tokens: int) -> None:
    """Hold and fill the first `tokens` tokens, hits included."""
    hit = kv.match(request, tokens - 1)
    want = Allocation(request, hit.tokens, tokens - hit.tokens, given=hit)
    assert kv.allocate(want) is not None
    kv.commit(request, tokens)


@pytest.mark.parametrize(("prompt", "expected"), [(31, 16), (32, 16), (33, 32), (16, 0), (17, 16)])
def test_a_hit_is_whole_blocks_and_leaves_a_token_to_compute_o17(
    prompt: int, expected: int
) -> None:
    kv = make()
    compute(kv, open_request(kv, 48), 48)
    assert kv.match(open_request(kv, prompt), prompt - 1).tokens == expected


def test_blocks_are_not_found_before_they_are_committed() -> None:
    kv = make()
    first = open_request(kv, 32)
    kv.allocate(Allocation(first, 0, 32))
    assert kv.match(open_request(kv, 40), 39).tokens == 0
    kv.commit(first, 31)
    assert kv.match(open_request(kv, 40), 39).tokens == 16, "only the full block is shared"
    kv.commit(first, 32)
    assert kv.match(open_request(kv, 40), 39).tokens == 32


@pytest.mark.parametrize("field", ["cache_salt", "adapter"])
def test_tenants_and_adapters_never_share(field: str) -> None:
    """For adapters that is vllm#30931: of two that have one name, the requests carry different
    identities, which come from the files."""
    kv = make()
    compute(kv, open_request(kv, 32, **{field: "a"}), 32)
    assert kv.match(open_request(kv, 32, **{field: "b"}), 31).tokens == 0
    assert kv.match(open_request(kv, 32), 31).tokens == 0
    assert kv.match(open_request(kv, 32, **{field: "a"}), 31).tokens == 16


def test_media_with_other_content_end_the_hit_where_they_begin_o14() -> None:
    kv = make()
    compute(kv, open_request(kv, 48, media=[(20, 4, b"x" * 32)]), 48)
    assert kv.match(open_request(kv, 48, media=[(20, 4, b"x" * 31 + b"y")]), 47).tokens == 16
    assert kv.match(open_request(kv, 48, media=[(20, 4, b"x" * 32)]), 47).tokens == 32


def test_without_caching_nothing_is_kept() -> None:
    kv = make(caching=False)
    compute(kv, open_request(kv, 32), 32)
    assert kv.match(open_request(kv, 32), 31).tokens == 0
    assert kv.usage().cached == 0


def test_a_hit_counts_the_blocks_it_takes_out_of_the_free_ones() -> None:
    kv = make(blocks=4)
    first = open_request(kv, 33)
    compute(kv, first, 33)
    kv.free(first)
    # Two of the three blocks are the hit itself, so that only one is left for new tokens.
    again = open_request(kv, 48 + 16)
    hit = kv.match(again, 63)
    assert hit.tokens == 32
    assert kv.allocate(Allocation(again, 32, 32, given=hit)) is None
    assert kv.pool.available == 3, "a refused allocation changed something"
    assert kv.allocate(Allocation(again, 32, 16, given=hit)) is not None
    assert kv.pool.available == 0


def test_a_reserve_stays_available() -> None:
    kv = make(blocks=5)
    request = open_request(kv, 40)
    assert kv.allocate(Allocation(request, 0, 40, reserve=2)) is None
    assert kv.allocate(Allocation(request, 0, 40, reserve=1)) is not None


def test_lookahead_makes_room_beyond_the_step() -> None:
    kv = make()
    request = open_request(kv, 16)
    assert kv.allocate(Allocation(request, 0, 16, lookahead=1)) == [[1, 2]]
    assert kv.allocate(Allocation(request, 16, 16)) == [[]]


def test_every_group_has_blocks_of_its_own() -> None:
    kv = make(groups=2)
    request = open_request(kv, 20)
    assert kv.allocate(Allocation(request, 0, 20)) == [[1, 2], [3, 4]]


def test_a_hit_is_what_all_groups_have() -> None:
    kv = make(groups=2)
    first = open_request(kv, 64)
    compute(kv, first, 64)
    kv.evict([first.tables[1][2].id])
    hit = kv.match(open_request(kv, 64), 63)
    assert hit.tokens == 32
    assert [len(blocks) for blocks in hit.blocks] == [2, 2]


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize(
    ("prompt", "full", "copied"), [(33, 2, 0), (34, 2, 1), (48, 2, 15), (1, 0, 0)]
)
def test_a_fork_shares_full_blocks_and_copies_the_begun_one(
    caching: bool, prompt: int, full: int, copied: int
) -> None:
    kv = make(caching=caching)
    parent = open_request(kv, prompt)
    compute(kv, parent, prompt)
    fork = kv.fork(parent, prompt)
    assert fork is not None
    kv.free(parent)
    child = open_request(kv, prompt)
    new = kv.allocate(Allocation(child, fork.tokens, 1, given=fork))
    assert new is not None
    assert len(new[0]) == 1, "the block of the last prompt token is the child's own"
    assert (fork.tokens, len(child.tables[0])) == (prompt - 1, full + 1)
    copies = kv.copies(fork, new)
    assert [(copy.target, copy.tokens) for copy in copies] == [(new[0][0], copied)] * bool(copied)
    loose = [source.block for source in fork.sources]
    kv.check([child], [], loose)
    kv.release(loose)
    kv.free(child)
    kv.check([], [], [])
    assert kv.pool.available == kv.pool.total


def test_a_released_fork_leaves_nothing_behind() -> None:
    kv = make()
    parent = open_request(kv, 40)
    compute(kv, parent, 40)
    forks = [kv.fork(parent, 40) for _ in range(3)]
    held = [fork for fork in forks if fork is not None]
    assert len(held) == 3
    kv.check([parent], held, [])
    kv.free(parent)
    for fork in held:
        kv.release_fork(fork)
    kv.check([], [], [])
    assert kv.pool.available == kv.pool.total


def test_check_notices_a_holder_that_is_gone() -> None:
    kv = make()
    request = open_request(kv, 20)
    compute(kv, request, 20)
    with pytest.raises(AssertionError, match="0 holders"):
        kv.check([], [], [])


def test_reset_clears_content_and_statistics() -> None:
    kv = make()
    request = open_request(kv, 40)
    compute(kv, request, 40)
    kv.count_query(40, 16)
    assert not kv.reset()
    kv.free(request)
    assert kv.reset()
    assert kv.match(open_request(kv, 40), 39).tokens == 0
    assert kv.stats().queried_tokens == 0


def test_hashes_cross_the_border_from_prompt_to_output() -> None:
    kv = make()
    first = open_request(kv, 10)
    first.output_ids += range(10, 40)
    kv.allocate(Allocation(first, 0, 40))
    kv.commit(first, 40)
    assert kv.match(open_request(kv, 40), 39).tokens == 32


def test_a_cache_of_no_groups_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="at least one KV slot"):
        KVManager(KVCacheConfig((), 1))
