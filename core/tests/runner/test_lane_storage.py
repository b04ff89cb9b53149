"""Groups that share memory: a block is the same bytes in every group, and no other block's."""

from __future__ import annotations

import pytest
import torch

from pegboard.api.kv import (
    EncoderOnlySpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVLayout,
    KVSlot,
    KVSpec,
    KVTensors,
    LatentSpec,
    RecurrentSpec,
    SlidingWindowSpec,
    StateTensor,
)
from pegboard.api.step import BlockCopy
from pegboard.errors import SelectionError
from pegboard.kv import form_groups
from pegboard.runner.layouts import choose_layouts
from pegboard.runner.storage import allocate_storage, copy_blocks

CPU = torch.device("cpu")
BLOCK_FIRST = KVLayout("block-first", ("block", "kv", "token", "head", "dim"))
KV_FIRST = KVLayout("kv-first", ("kv", "block", "token", "head", "dim"))
LATENT = KVLayout("latent", ("block", "token", "dim"))
FULL = FullAttentionSpec(1, 4, "float32")
SLIDING = SlidingWindowSpec(1, 4, "float32", window=9)
STATE = RecurrentSpec((StateTensor("conv", (3, 5), "bfloat16"), StateTensor("s", (9,), "float32")))
BLOCKS = 7


def build(
    *layers: KVSpec, layout: KVLayout = BLOCK_FIRST, size: int = 4
) -> tuple[KVCacheConfig, dict[str, KVTensors]]:
    slots = [KVSlot(number, "self", spec) for number, spec in enumerate(layers)]
    cache = KVCacheConfig(form_groups(slots, size), BLOCKS)
    layouts = [LATENT if isinstance(g.spec, LatentSpec) else layout for g in cache.groups]
    return cache, allocate_storage(slots, cache, layouts, CPU)


def fill(tensors: KVTensors, block: int, value: float) -> None:
    """Write a whole block."""
    if tensors.states:
        for state in tensors.states.values():
            state[block].fill_(value)
    else:
        tensors.data.select(tensors.layout.axes.index("block"), block).fill_(value)


def holds(tensors: KVTensors, block: int, value: float) -> bool:
    if tensors.states:
        return all(bool((state[block] == value).all()) for state in tensors.states.values())
    return bool((tensors.data.select(tensors.layout.axes.index("block"), block) == value).all())


MIXES: list[tuple[KVSpec, ...]] = [
    (SLIDING, SLIDING, FULL, SLIDING, SLIDING, FULL),
    (FULL, FullAttentionSpec(3, 4, "float32"), SLIDING),
    (FULL, FullAttentionSpec(1, 4, "bfloat16")),
    (FULL, STATE, LatentSpec(7, "bfloat16")),
    (STATE, RecurrentSpec(STATE.states[:1], "none")),
]


@pytest.mark.parametrize("layers", MIXES)
def test_a_block_of_any_group_touches_no_other_block(layers: tuple[KVSpec, ...]) -> None:
    cache, storage = build(*layers)
    firsts = [storage[group.slots[0]] for group in cache.groups]  # all of them in lane 0
    for number, writer in enumerate(firsts):
        others = {
            block: firsts[(number + block) % len(firsts)] for block in range(BLOCKS) if block != 3
        }
        for block, tensors in others.items():
            fill(tensors, block, block)
        fill(writer, 3, 50)
        assert holds(writer, 3, 50)
        for block, tensors in others.items():
            assert holds(tensors, block, block), f"{writer.key} changed block {block}"


def test_a_page_that_no_kind_fills_exactly_is_padded() -> None:
    cache, storage = build(*MIXES[3])
    fullest = max(group.slot_bytes() for group in cache.groups)
    assert min(group.slot_bytes() for group in cache.groups) < fullest <= cache.page_bytes
    assert cache.page_bytes % 64 == 0
    strides = {t.data.stride(0) * t.data.element_size() for t in storage.values()}
    assert strides == {cache.page_bytes}


def test_slots_of_one_lane_share_memory_and_lanes_do_not() -> None:
    cache, storage = build(*MIXES[0])
    assert cache.lanes == 2
    begins = {key: tensors.data.data_ptr() for key, tensors in storage.items()}
    assert begins["0.self"] == begins["3.self"] == begins["2.self"]
    assert begins["1.self"] == begins["4.self"] == begins["5.self"]
    assert begins["0.self"] != begins["1.self"]
    storages = {tensors.data.untyped_storage().data_ptr() for tensors in storage.values()}
    assert len(storages) == 2
    assert cache.bytes() == BLOCKS * 2 * FULL.page_bytes(4)


def test_keys_and_values_apart_are_shared_as_well_if_all_groups_agree() -> None:
    cache, storage = build(SLIDING, FullAttentionSpec(2, 4, "float32"), layout=KV_FIRST)
    assert [group.block_size for group in cache.groups] == [8, 4]
    fill(storage["0.self"], 2, 5.0)
    fill(storage["1.self"], 3, 6.0)
    assert holds(storage["0.self"], 2, 5.0)
    fill(storage["1.self"], 2, 7.0)
    assert holds(storage["0.self"], 2, 7.0)
    assert holds(storage["1.self"], 3, 6.0)


def test_layouts_that_cut_memory_differently_are_refused_by_name() -> None:
    with pytest.raises(SelectionError, match=r"group 0 \(full\) kv-first, group 1 \(recurrent\)"):
        build(FULL, STATE, layout=KV_FIRST)


def test_state_tensors_are_aligned_views_of_their_page() -> None:
    cache, storage = build(FULL, STATE)
    tensors = storage["1.self"]
    assert tensors.data.shape == (BLOCKS, cache.page_bytes)
    assert {name: tuple(s.shape) for name, s in tensors.states.items()} == {
        "conv": (BLOCKS, 3, 5),
        "s": (BLOCKS, 9),
    }
    for state in tensors.states.values():
        assert state[1].data_ptr() % 64 == 0
    assert STATE.offsets() == {"conv": 0, "s": 64}


def test_copies_take_the_begun_part_of_a_block_and_a_state_whole() -> None:
    _, storage = build(FULL, STATE)
    fill(storage["0.self"], 1, 1.0)
    fill(storage["1.self"], 2, 2.0)
    copy_blocks([BlockCopy(0, 1, 3, 2), BlockCopy(1, 2, 4, 1)], storage.values())
    copied = storage["0.self"].data[3]
    assert bool((copied[:, :2] == 1.0).all())
    assert not copied[:, 2:].any()
    assert holds(storage["1.self"], 4, 2.0)


def test_a_slot_that_keeps_nothing_has_empty_storage() -> None:
    cache, storage = build(FULL, EncoderOnlySpec(2, 4, "float32"))
    assert storage["1.self"].data.numel() == 0
    assert cache.bytes() == BLOCKS * FULL.page_bytes(4)


WIDE = FullAttentionSpec(1, 17, "float32")


@pytest.mark.parametrize(
    ("specs", "offers", "chosen"),
    [
        ([FULL, SLIDING], [[KV_FIRST, BLOCK_FIRST]] * 2, [KV_FIRST] * 2),
        ([FULL, SLIDING], [[KV_FIRST, BLOCK_FIRST], [BLOCK_FIRST]], [BLOCK_FIRST] * 2),
        ([FULL, SLIDING], [[BLOCK_FIRST, KV_FIRST], [KV_FIRST]], [KV_FIRST] * 2),
        ([FULL, STATE], [[KV_FIRST, BLOCK_FIRST], [BLOCK_FIRST]], [BLOCK_FIRST] * 2),
        ([FULL], [[KV_FIRST, BLOCK_FIRST]], [KV_FIRST]),
    ],
)
def test_groups_take_the_preferred_layout_that_all_can_share(
    specs: list[KVSpec], offers: list[list[KVLayout]], chosen: list[KVLayout]
) -> None:
    groups = form_groups([KVSlot(n, "self", spec) for n, spec in enumerate(specs)], 4)
    assert choose_layouts(KVCacheConfig(groups, 1), offers) == tuple(chosen)


def test_heads_of_unlike_sizes_take_the_layout_that_can_be_padded() -> None:
    slots = [KVSlot(0, "self", FULL), KVSlot(1, "self", WIDE)]
    groups = form_groups(slots, 4)
    sizes = {group.slot_bytes() for group in groups}
    assert len(sizes) == 2, "the pages would be equal"
    layouts = choose_layouts(KVCacheConfig(groups, 1), [[KV_FIRST, BLOCK_FIRST]] * 2)
    assert layouts == (BLOCK_FIRST, BLOCK_FIRST)
    allocate_storage(slots, KVCacheConfig(groups, BLOCKS), layouts, CPU)


def test_groups_without_a_common_layout_are_refused_by_name() -> None:
    groups = form_groups([KVSlot(0, "self", FULL), KVSlot(1, "self", SLIDING)], 4)
    with pytest.raises(SelectionError, match=r"group 0 \(full\) kv-first, group 1 \(sliding\)"):
        choose_layouts(KVCacheConfig(groups, 1), [[KV_FIRST], [BLOCK_FIRST]])
