"""What each kind of group finds, keeps, gives up and shares, one rule at a time."""

from __future__ import annotations

import pytest

from pegboard.api.kv import (
    ChunkedLocalSpec,
    CrossAttentionSpec,
    EncoderOnlySpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVSlot,
    KVSpec,
    RecurrentSpec,
    SlidingWindowSpec,
    StateTensor,
)
from pegboard.api.params import SamplingParams
from pegboard.api.views import EngineRequest
from pegboard.kv import Allocation, Block, KVManager, KVRequest, form_groups

FULL = FullAttentionSpec(1, 2, "float32")
WIDE = FullAttentionSpec(2, 4, "float32")
SLIDING = SlidingWindowSpec(1, 2, "float32", window=20)
CHUNKED = ChunkedLocalSpec(1, 2, "float32", chunk=24)
STATE = RecurrentSpec((StateTensor("s", (32,), "float32"),))
"""As big as 8 tokens of FULL."""


def make(*layers: KVSpec, blocks: int = 60, budget: int | None = 100) -> KVManager:
    slots = [KVSlot(layer, "self", spec) for layer, spec in enumerate(layers)]
    return KVManager(KVCacheConfig(form_groups(slots, 8), blocks), budget=budget)


def open_request(kv: KVManager, tokens: int, **fields: object) -> KVRequest:
    ids = list(range(tokens))
    return kv.open(EngineRequest("r", ids, SamplingParams(), seed=0, **fields))  # type: ignore[arg-type]


def run(kv: KVManager, request: KVRequest, *stops: int) -> None:
    """Compute up to each of `stops` in turn, from the last one or a hit on."""
    start = 0
    for stop in stops:
        given = None if start else kv.match(request, stop - 1)
        start = given.tokens if given is not None else start
        assert kv.allocate(Allocation(request, start, stop - start, given=given)) is not None
        kv.commit(request, stop)
        kv.forget(request, stop)
        start = stop


def kept(kv: KVManager, request: KVRequest, group: int = 0) -> list[int]:
    """Entries of a request's block table that hold a block."""
    return kept_of(kv, request.tables[group])


def run_on(kv: KVManager, request: KVRequest, start: int, *stops: int) -> None:
    """Go on from `start` to each of `stops`."""
    for stop in stops:
        assert kv.allocate(Allocation(request, start, stop - start)) is not None
        kv.commit(request, stop)
        kv.forget(request, stop)
        start = stop


def kept_of(kv: KVManager, blocks: list[Block]) -> list[int]:
    """Entries that hold a block."""
    return [n for n, block in enumerate(blocks) if block is not kv.pool.null]


# Sliding and chunked


def test_blocks_that_left_the_window_are_given_up_and_tables_keep_their_length() -> None:
    kv = make(SLIDING)
    request = open_request(kv, 100)
    run(kv, request, 26)
    assert kept(kv, request) == [0, 1, 2, 3], "token 26 attends to tokens 7 to 26"
    run_on(kv, request, 26, 27)
    assert kept(kv, request) == [1, 2, 3], "token 27 attends to tokens 8 to 27"
    assert len(request.tables[0]) == 4
    assert kv.usage().used == 3


def test_what_left_the_window_is_still_cached() -> None:
    kv = make(SLIDING)
    run(kv, open_request(kv, 100), 30, 60, 90)
    assert kv.match(open_request(kv, 17), 16).tokens == 16
    assert kv.match(open_request(kv, 49), 48).tokens == 48


def test_a_sliding_hit_needs_only_its_last_window() -> None:
    kv = make(SLIDING)
    first = open_request(kv, 80)
    run(kv, first, 80)
    kv.evict(range(1, 6))  # of tokens 0 to 39
    hit = kv.match(open_request(kv, 65), 64)
    assert hit.tokens == 64
    null = kv.pool.null
    assert [block is null for block in hit.blocks[0]] == [True] * 5 + [False] * 3
    assert kv.match(open_request(kv, 57), 56).tokens == 0, "56 tokens need those from 37 on"


def test_a_chunked_hit_needs_only_the_current_chunk() -> None:
    kv = make(CHUNKED, FULL)
    first = open_request(kv, 80)
    run(kv, first, 80)
    kv.evict(range(1, 7))  # of tokens 0 to 47 in the chunked group
    assert kv.match(open_request(kv, 60), 59).tokens == 56
    assert kept_of(kv, kv.match(open_request(kv, 60), 59).blocks[0]) == [6]
    at_border = kv.match(open_request(kv, 50), 49)
    assert (at_border.tokens, kept_of(kv, at_border.blocks[0])) == (48, [])


def test_chunks_are_given_up_whole() -> None:
    kv = make(CHUNKED)
    request = open_request(kv, 100)
    run(kv, request, 47)
    assert kept(kv, request) == [3, 4, 5]
    run_on(kv, request, 47, 48, 49)
    assert kept(kv, request) == [6]


def test_a_long_request_holds_a_window_and_a_step_at_most() -> None:
    kv = make(SLIDING, SLIDING, FULL, blocks=63, budget=16)
    request = open_request(kv, 400)
    most = 0
    for start in range(0, 400, 16):
        run_on(kv, request, start, start + 16)
        windows = [kept(kv, request, g) for g in range(2)]
        most = max(most, *(len(blocks) for blocks in windows))
    assert most <= SLIDING.blocks_for(400, 8, 16) == 6
    assert kv.blocks_for(400) == 2 * 6 + 50


# Hits inside a block


def test_a_hit_may_end_inside_a_block_of_a_group_with_longer_blocks() -> None:
    kv = make(FULL, WIDE)
    assert [group.block_size for group in kv.groups] == [32, 8]
    assert kv.prefix_match_unit == 8
    first = open_request(kv, 70)
    run(kv, first, 70)
    second = open_request(kv, 60)
    hit = kv.match(second, 59)
    assert hit.tokens == 56
    (source,) = hit.sources
    assert (source.group, source.block, source.tokens) == (0, first.tables[0][1], 24)
    new = kv.allocate(Allocation(second, 56, 4, given=hit))
    assert new is not None
    (copy,) = kv.copies(hit, new)
    assert (copy.source, copy.target, copy.tokens) == (source.block.id, new[0][0], 24)
    kv.check([first, second], [], [source.block])


def test_a_block_is_found_up_to_where_it_is_computed() -> None:
    kv = make(FULL, WIDE)
    run(kv, open_request(kv, 44), 44)  # the second block of 32 holds 12 tokens
    assert kv.match(open_request(kv, 60), 59).tokens == 40


def test_an_evicted_block_is_found_under_none_of_its_keys() -> None:
    kv = make(FULL, WIDE)
    first = open_request(kv, 70)
    run(kv, first, 70)
    kv.evict([first.tables[0][1].id])
    assert kv.match(open_request(kv, 60), 59).tokens == 32


# Recurrent state


def test_long_chunks_end_where_a_state_is_kept() -> None:
    kv = make(STATE, FULL)
    assert kv.cut(0, 30) == 24
    assert kv.cut(24, 6) == 6, "no border is reached"
    assert kv.cut(20, 10) == 4
    assert kv.cut(23, 1) == 1
    everywhere = make(RecurrentSpec(STATE.states, "all"), FULL)
    assert everywhere.cut(0, 30) == 30


def test_a_hit_ends_where_a_state_was_kept() -> None:
    kv = make(STATE, FULL)
    run(kv, open_request(kv, 48), 24, 30, 40)
    assert kv.match(open_request(kv, 48), 47).tokens == 40
    assert kv.match(open_request(kv, 40), 39).tokens == 24, "no step ended at 32"


def test_a_state_in_the_middle_of_a_block_is_not_taken_for_one_at_its_end() -> None:
    kv = make(STATE, FULL)
    # A step that goes on from 20 over the border at 24 leaves the state of 20 in that entry.
    run(kv, open_request(kv, 48), 20, 40)
    assert kv.match(open_request(kv, 33), 32).tokens == 0
    assert kv.match(open_request(kv, 48), 47).tokens == 40
    kv = make(STATE, FULL)
    run(kv, open_request(kv, 48), 20, 30)
    assert kv.match(open_request(kv, 48), 47).tokens == 0


def test_only_the_last_state_is_held() -> None:
    kv = make(STATE)
    request = open_request(kv, 60)
    run(kv, request, 32)
    assert kept(kv, request) == [3]
    assert kv.allocate(Allocation(request, 32, 5)) == [[5 - 3]]
    assert kept(kv, request) == [3, 4], "the step reads the one and writes the other"
    kv.commit(request, 37)
    kv.forget(request, 37)
    assert kept(kv, request) == [4]
    assert kv.usage().cached == 1


def test_states_at_every_border_are_found_when_the_kernel_writes_them() -> None:
    kv = make(RecurrentSpec(STATE.states, "all"), FULL)
    run(kv, open_request(kv, 48), 44)
    for tokens, expected in ((44, 40), (40, 32), (9, 8)):
        assert kv.match(open_request(kv, tokens), tokens - 1).tokens == expected


@pytest.mark.parametrize(
    "spec",
    [
        RecurrentSpec(STATE.states, "none"),
        CrossAttentionSpec(1, 2, "float32", max_tokens=30),
        EncoderOnlySpec(1, 2, "float32"),
    ],
)
def test_models_with_a_group_that_cannot_begin_in_the_middle_have_no_hits(spec: KVSpec) -> None:
    kv = make(FULL, spec)
    assert not kv.caching
    run(kv, open_request(kv, 48), 48)
    assert kv.match(open_request(kv, 48), 47).tokens == 0
    assert kv.usage().cached == 0


def test_cross_attention_takes_the_encoders_blocks_at_once_and_no_more() -> None:
    kv = make(CrossAttentionSpec(1, 2, "float32", max_tokens=30), FULL)
    assert kv.encoder_limit == 30
    request = open_request(kv, 20, encoder_tokens=17)
    assert kv.allocate(Allocation(request, 0, 20)) == [[1, 2, 3], [4, 5, 6]]
    assert kv.allocate(Allocation(request, 20, 10)) == [[], [7]]
    fork = kv.fork(request, 20)
    assert fork is not None
    assert fork.blocks[0] == request.tables[0], "children read the same encoder tokens"
    kv.release_fork(fork)
    kv.free(request)
    kv.check([], [], [])


# Forks


def test_a_fork_of_a_state_starts_from_a_snapshot() -> None:
    kv = make(STATE, FULL)
    parent = open_request(kv, 30)
    run(kv, parent, 24, 29)
    assert kv.allocate(Allocation(parent, 29, 1)) is not None
    (copy,) = kv.snapshot(parent, 29)
    assert (copy.group, copy.source) == (0, parent.tables[0][3].id)
    kv.commit(parent, 30)
    fork = kv.fork(parent, 30)
    assert fork is not None
    kv.drop_snapshots(parent)
    kv.forget(parent, 30)
    child = open_request(kv, 30)
    new = kv.allocate(Allocation(child, 29, 1, given=fork))
    assert new is not None
    state, tokens = kv.copies(fork, new)
    assert (state.source, state.target) == (copy.target, new[0][0])
    assert (tokens.source, tokens.tokens) == (parent.tables[1][3].id, 5)
    loose = [source.block for source in fork.sources]
    kv.check([parent, child], [], loose)
    kv.release(loose)
    kv.free(parent)
    kv.free(child)
    kv.check([], [], [])


def test_a_snapshot_at_a_border_needs_no_copy() -> None:
    kv = make(STATE)
    parent = open_request(kv, 25)
    run(kv, parent, 24)
    assert kv.allocate(Allocation(parent, 24, 1)) is not None
    assert kv.snapshot(parent, 24) == []
    fork = kv.fork(parent, 25)
    assert fork is not None
    assert (fork.sources, fork.blocks[0][2]) == ([], parent.tables[0][2])
    kv.check([parent], [fork], [])


def test_without_a_snapshot_there_is_no_fork() -> None:
    kv = make(STATE, blocks=3)
    parent = open_request(kv, 30)
    run(kv, parent, 24, 29)
    kv.allocate(Allocation(parent, 29, 1))
    kv.pool.take(1)
    assert kv.snapshot(parent, 29) == [], "no block is left for it"
    assert kv.fork(parent, 30) is None


def test_a_parent_whose_window_moved_on_cannot_be_forked() -> None:
    kv = make(SLIDING)
    parent = open_request(kv, 30)
    parent.output_ids += range(10)
    run(kv, parent, 30)
    assert kv.fork(parent, 30) is not None
    run_on(kv, parent, 30, 40)
    assert kv.fork(parent, 30) is None
