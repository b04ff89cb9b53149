"""What each kind of group is told of a step: states, encoder tokens, latent vectors."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from pegboard.api.attention import AttentionStep
from pegboard.api.kv import (
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVGroup,
    KVLayout,
    KVSlot,
    LatentSpec,
    RecurrentSpec,
    StateMode,
    StateTensor,
)
from pegboard.api.params import SamplingParams
from pegboard.api.recurrent import RecurrentStep
from pegboard.api.step import BlockCopy, NewRow, StepPlan
from pegboard.runner.inputs import dummy_inputs, prepare
from pegboard.runner.slots import Limits, Slots
from pegboard.runner.states import recurrent_step
from pegboard.runner.storage import allocate_storage, copy_blocks

CPU = torch.device("cpu")
STATES = (StateTensor("s", (4,), "float32"),)
FULL = FullAttentionSpec(1, 4, "float32")
CROSS = CrossAttentionSpec(1, 4, "float32", max_tokens=40)
LATENT = LatentSpec(6, "float32")
LIMITS = Limits(max_rows=4, max_tokens=64, max_model_len=99, vocab_size=10)


def state_group(mode: StateMode, size: int, index: int = 0) -> KVGroup:
    return KVGroup(index, RecurrentSpec(STATES, mode), size, (f"{index}.state",))


@pytest.mark.parametrize("mode", ["none", "align", "all"])
def test_states_lie_where_the_specification_says(mode: StateMode) -> None:
    rng = random.Random(0)
    inside = 0
    for _ in range(200):
        size = rng.choice([1, 2, 8, 1 << 30])
        rows = [(rng.choice([0, rng.randrange(40)]), rng.randrange(1, 30)) for _ in range(4)]
        width = -(-70 // size)
        table = torch.tensor(
            [[1 + row * width + entry for entry in range(width)] for row in range(4)],
            dtype=torch.int32,
        )
        starts, counts = (np.array(column) for column in zip(*rows, strict=True))
        step = recurrent_step(state_group(mode, size), starts, counts, table)
        blocks = iter(step.border_blocks.tolist())
        for row, (start, count) in enumerate(rows):
            stop, entries = start + count, table[row].tolist()
            assert step.has_state[row] == bool(step.has_state_device[row]) == (start > 0)
            assert step.reads[row] == (entries[(start - 1) // size] if start else 0)
            assert step.writes[row] == entries[(stop - 1) // size]
            borders = [n for n in range(start + 1, stop) if n % size == 0 and mode == "all"]
            assert list(step.borders[row]) == [n - start for n in borders]
            assert [next(blocks) for _ in borders] == [entries[n // size - 1] for n in borders]
            inside += len(borders)
        assert next(blocks, None) is None
        assert step.query_lens == counts.tolist()
        assert step.query_starts.tolist() == [0, *counts.cumsum().tolist()]
    assert (inside > 100) is (mode == "all")


def row(slot: int, prompt: int, blocks: list[list[int]], encoder_tokens: int = 0) -> NewRow:
    params = SamplingParams(temperature=0.0)
    ids = [1 + i % 9 for i in range(prompt)]
    return NewRow(slot, ids, [], params, 0, 0, [], blocks, encoder_tokens)


def plan(starts: list[int], counts: list[int], rows: list[NewRow]) -> StepPlan:
    slots = [new.slot for new in rows]
    none: list[list[list[int]]] = [[[] for _ in rows[0].blocks] for _ in rows]
    return StepPlan(0, slots, starts, counts, [True] * len(slots), none, rows)


def test_a_hybrid_step_gives_each_group_its_own_form() -> None:
    groups = (KVGroup(0, FULL, 4, ("0.self",)), state_group("align", 8, 1))
    slots = Slots(LIMITS, groups, CPU)
    rows = [row(2, 10, [[3, 4, 5], [0, 6]]), row(0, 3, [[7], [8]])]
    step = plan([9, 0], [1, 3], rows)
    slots.apply(step)
    full, states = prepare(step, slots).groups
    assert isinstance(full, AttentionStep) and isinstance(states, RecurrentStep)
    assert full.slots.tolist() == [5 * 4 + 1, 28, 29, 30]
    assert states.reads.tolist() == [6, 0]
    assert states.writes.tolist() == [6, 8]
    assert list(states.has_state) == [True, False]


def test_a_dummy_step_reads_no_state_and_writes_the_null_block() -> None:
    groups = [state_group("all", 4), KVGroup(1, CROSS, 8, ("1.cross",))]
    states, cross = dummy_inputs([9, 1, 4], [0, 0, 0], groups, CPU).groups
    assert isinstance(states, RecurrentStep) and isinstance(cross, AttentionStep)
    assert states.has_state == [False] * 3 and states.reads.tolist() == [0] * 3
    assert states.writes.tolist() == [0] * 3 and set(states.border_blocks.tolist()) == {0}
    assert cross.kv_lens == [0, 0, 0] and cross.slots.tolist() == []


def test_rows_of_a_dummy_step_may_come_after_other_tokens() -> None:
    (full,) = dummy_inputs([1, 9, 4], [16, 0, 3], [KVGroup(0, FULL, 4, ("0.self",))], CPU).groups
    assert isinstance(full, AttentionStep)
    assert full.query_lens == [1, 9, 4] and full.kv_lens == [17, 9, 7]
    assert full.block_table.shape == (3, 5) and not full.block_table.any()
    assert max(full.slots.tolist()) < 4, "tokens outside the null block are stored"


def test_cross_attention_sees_the_encoders_tokens_and_stores_them_once() -> None:
    groups = (KVGroup(0, FULL, 4, ("0.self",)), KVGroup(1, CROSS, 8, ("0.cross",)))
    slots = Slots(LIMITS, groups, CPU)
    rows = [row(1, 6, [[2, 3], [4, 9]], encoder_tokens=11), row(3, 9, [[5, 6, 7], [8]], 5)]
    first = plan([0, 8], [4, 1], rows)
    slots.apply(first)
    _, cross = prepare(first, slots).groups
    assert isinstance(cross, AttentionStep)
    assert cross.kv_lens == [11, 5] and cross.kv_lens_device.tolist() == [11, 5]
    assert cross.query_lens == [4, 1]
    assert cross.block_table.tolist() == [[4, 9], [8, 0]]
    assert cross.slots.tolist() == [32 + i for i in range(8)] + [72, 73, 74]
    later = StepPlan(1, [1, 3], [4, 9], [2, 1], [True] * 2, [[[], []]] * 2)
    slots.apply(later)
    _, cross = prepare(later, slots).groups
    assert isinstance(cross, AttentionStep)
    assert cross.slots.tolist() == [] and cross.kv_lens == [11, 5]


def test_a_slot_that_is_used_again_has_the_new_requests_encoder_tokens() -> None:
    groups = (KVGroup(0, CROSS, 8, ("0.cross",)),)
    slots = Slots(LIMITS, groups, CPU)
    slots.apply(plan([0], [1], [row(0, 1, [[1, 2]], 12)]))
    again = plan([0], [2], [row(0, 2, [[]], 0)])
    slots.apply(again)
    (cross,) = prepare(again, slots).groups
    assert isinstance(cross, AttentionStep)
    assert cross.kv_lens == [0] and cross.slots.tolist() == []


def test_a_table_of_cross_attention_has_room_for_the_encoder_only() -> None:
    tables = Slots(LIMITS, (KVGroup(0, CROSS, 8, ("0.cross",)),), CPU).tables
    assert tables[0].shape == (5, 5)


def test_latent_vectors_have_places_and_are_copied_like_keys() -> None:
    group = KVGroup(0, LATENT, 4, ("0.self",))
    slots = Slots(LIMITS, (group,), CPU)
    step = plan([2], [4], [row(0, 6, [[5, 3]])])
    slots.apply(step)
    (latent,) = prepare(step, slots).groups
    assert isinstance(latent, AttentionStep)
    assert latent.slots.tolist() == [22, 23, 12, 13]
    layout = KVLayout("latent", ("block", "token", "dim"))
    storage = allocate_storage(
        [KVSlot(0, "self", LATENT)], KVCacheConfig((group,), 7), [layout], CPU
    )["0.self"]
    flat = storage.data.view(-1, 6)
    flat[latent.slots] = torch.arange(24.0).view(4, 6)
    copy_blocks([BlockCopy(0, 3, 6, 1)], [storage])
    assert storage.data[6, 0].tolist() == storage.data[3, 0].tolist() == list(range(12, 18))
    assert not storage.data[6, 1:].any(), "only the begun part is copied"
