"""Lanes and pages: how unlike layers share one memory, by hand and by brute force."""

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
    LatentSpec,
    RecurrentSpec,
    SlidingWindowSpec,
    StateTensor,
)
from pegboard.config.engine import EngineConfig
from pegboard.errors import PluginError, ResourceError
from pegboard.kv import form_groups, size_cache
from pegboard.kv.groups import block_bytes, blocks_for, longest_request
from pegboard.kv.lanes import NO_BORDER
from pegboard.testing.toy_kinds import TOY_KINDS

FULL = FullAttentionSpec(1, 256, "bfloat16")
SLIDING = SlidingWindowSpec(1, 256, "bfloat16", window=512)
STATE = RecurrentSpec(
    (StateTensor("conv", (3, 64), "bfloat16"), StateTensor("s", (99,), "float32"))
)


def groups_of(*layers: KVSpec, size: int = 16) -> tuple:
    return form_groups([KVSlot(i, "self", spec) for i, spec in enumerate(layers)], size)


def pattern(sliding: int, full: int) -> list[KVSpec]:
    return [SLIDING] * sliding + [FULL] * full


@pytest.mark.parametrize(
    ("sliding", "full", "lanes", "groups"),
    [
        (15, 3, 3, 6),  # nothing wasted
        (22, 4, 4, 7),  # 2 of 24 sliding lanes
        (52, 10, 10, 7),  # 8 of 60 sliding lanes; full layers waste nothing
        (13, 13, 13, 2),
        (31, 1, 1, 32),  # a lone full layer must not pay for empty lanes
        (0, 5, 5, 1),
        (1, 30, 1, 31),
    ],
)
def test_the_split_has_few_groups_and_wastes_little(
    sliding: int, full: int, lanes: int, groups: int
) -> None:
    made = groups_of(*pattern(sliding, full))
    assert (KVCacheConfig(made, 1).lanes, len(made)) == (lanes, groups)
    assert [slot for group in made for slot in group.slots] == [
        f"{layer}.self" for layer in range(sliding + full)
    ]


def test_a_block_costs_the_same_whichever_group_holds_it() -> None:
    made = groups_of(*pattern(15, 3))
    assert block_bytes(made) == 3 * 16 * 2 * 256 * 2
    cache = KVCacheConfig(made, 10)
    assert cache.bytes() == 10 * block_bytes(made), "groups share memory, they do not add up"


def test_a_smaller_token_gets_longer_blocks() -> None:
    wide = FullAttentionSpec(3, 256, "bfloat16")
    made = groups_of(FULL, wide)
    assert [group.block_size for group in made] == [48, 16]
    assert made[0].slot_bytes() == made[1].slot_bytes() == KVCacheConfig(made, 1).page_bytes


def test_sizes_of_two_to_three_meet_in_a_common_multiple() -> None:
    made = groups_of(FullAttentionSpec(2, 64, "bfloat16"), FullAttentionSpec(3, 64, "bfloat16"))
    assert [group.block_size for group in made] == [48, 32]
    assert len({group.slot_bytes() for group in made}) == 1


def test_a_state_fits_into_a_page_and_attention_fills_it() -> None:
    small = FullAttentionSpec(1, 2, "float32")
    attention, state = groups_of(small, STATE)
    page = KVCacheConfig((attention, state), 1).page_bytes
    assert state.slot_bytes() == 384 + 448, "each tensor begins at a multiple of 64 bytes"
    assert state.slot_bytes() <= page
    assert attention.slot_bytes() == page
    assert attention.block_size % 16 == 0
    assert state.block_size == attention.block_size, "a state is worth a block that often only"


def test_a_state_without_copies_has_one_block_whatever_the_length() -> None:
    state, _ = groups_of(RecurrentSpec(STATE.states, "none"), FULL)
    assert state.block_size == NO_BORDER
    assert state.spec.blocks_for(10**6, state.block_size) == 1


def test_encoder_only_layers_take_neither_lanes_nor_blocks() -> None:
    encoder = EncoderOnlySpec(8, 64, "bfloat16")
    made = groups_of(*[encoder] * 12, FULL)
    assert len(made) == 2
    assert KVCacheConfig(made, 1).lanes == 1
    assert blocks_for(made, 100) == 7
    cache = size_cache(groups_of(encoder), EngineConfig(model="m"), 0, 100)
    assert (cache.num_blocks, cache.bytes()) == (1, 0)


@pytest.mark.parametrize("kinds", sorted(TOY_KINDS))
@pytest.mark.parametrize("base", [8, 16, 32])
def test_every_mix_has_pages_that_hold_a_block_of_each_group(kinds: str, base: int) -> None:
    made = groups_of(*TOY_KINDS[kinds], size=base)
    cache = KVCacheConfig(made, 1)
    for group in made:
        assert group.slot_bytes() <= cache.page_bytes
        assert len(group.slots) <= cache.lanes or group.slot_bytes() == 0
        assert group.block_size % base == 0


# What a request holds at most


def held_at_most(first_needed: list[int], tokens: int, size: int, budget: int) -> int:
    """Most blocks in use at any step, by trying every start; `first_needed` is by position."""
    most = 0
    for start in range(tokens):
        stop = min(start + budget, tokens)
        first = first_needed[start] // size
        most = max(most, -(-stop // size) - first)
    return most


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("budget", [1, 3, 8, 17])
@pytest.mark.parametrize("reach", [1, 2, 7, 8, 9, 20])
def test_windows_hold_no_more_than_is_counted(size: int, budget: int, reach: int) -> None:
    tokens = 90
    sliding = SlidingWindowSpec(1, 2, "float32", window=reach)
    needed = [max(0, p - reach + 1) for p in range(tokens)]
    assert held_at_most(needed, tokens, size, budget) == sliding.blocks_for(tokens, size, budget)
    chunked = ChunkedLocalSpec(1, 2, "float32", chunk=reach)
    needed = [p // reach * reach for p in range(tokens)]
    assert held_at_most(needed, tokens, size, budget) <= chunked.blocks_for(tokens, size, budget)


def test_short_requests_hold_what_they_have() -> None:
    assert SLIDING.blocks_for(40, 16, 8192) == 3
    assert SLIDING.blocks_for(10**6, 16, 64) == 37
    assert SLIDING.blocks_for(10**6, 16) == 62500, "in one step there is nothing to give up"
    assert LatentSpec(576, "bfloat16").page_bytes(16) == 16 * 576 * 2
    assert CrossAttentionSpec(1, 2, "float32", max_tokens=1500).blocks_for(3, 16, 64) == 94
    assert STATE.blocks_for(10**6, 512, 64) == 2
    assert RecurrentSpec(STATE.states, "all").blocks_for(10**6, 16, 64) == 5


def test_windows_alone_serve_any_length_and_full_layers_bound_it() -> None:
    options = {"num_gpu_blocks_override": 40, "max_num_batched_tokens": 64}
    config = EngineConfig(model="m", max_num_seqs=4, **options)
    windows = groups_of(SLIDING)
    assert size_cache(windows, config, 0, 10**6).num_blocks == 40
    assert longest_request(windows, 39, 64) > 10**6
    assert longest_request(windows, 36, 64) < 10**6, "37 blocks are needed beyond the window"
    mixed = groups_of(SLIDING, FULL)
    longest = longest_request(mixed, 60, 64)
    assert longest == 30 * 16, "30 blocks in either group: shorter than the window and a step"
    assert blocks_for(mixed, longest, 64) <= 60 < blocks_for(mixed, longest + 16, 64)
    with pytest.raises(ResourceError, match="max_model_len to at most 304"):
        size_cache(mixed, config, 0, 10**6)


def test_nonsense_is_refused_by_name() -> None:
    with pytest.raises(
        PluginError, match=r"SlidingWindowSpec\.window=0 is not allowed: at least 1"
    ):
        SlidingWindowSpec(1, 2, "float32", window=0)
    with pytest.raises(ValueError, match="cache"):
        RecurrentSpec(STATE.states, "some")  # type: ignore[arg-type]


def test_auto_dtypes_are_replaced_where_they_stand() -> None:
    assert SlidingWindowSpec(1, 2, "auto", window=3).with_dtype("float32").dtype == "float32"
    assert FULL.with_dtype("float32") == FULL
    assert LatentSpec(8, "auto").with_dtype("float16") == LatentSpec(8, "float16")
    states = (StateTensor("a", (2,), "auto"), StateTensor("b", (2,), "float32"))
    made = RecurrentSpec(states).with_dtype("bfloat16")
    assert [state.dtype for state in made.states] == ["bfloat16", "float32"]
