"""From a plan and the persistent batch to what the forward pass reads.

Vectorised: no Python per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import torch

from pegboard.api.attention import AttentionStep
from pegboard.api.kv import CrossAttentionSpec, KVGroup, RecurrentSpec
from pegboard.api.recurrent import RecurrentStep
from pegboard.api.step import StepPlan
from pegboard.runner.slots import Slots
from pegboard.runner.states import recurrent_step

__all__ = ["StepInputs", "dummy_inputs", "prepare"]

Ints = np.ndarray[Any, np.dtype[np.int64]]
GroupStep = AttentionStep | RecurrentStep


@attrs.frozen(eq=False)
class StepInputs:
    """One step of R rows and T query tokens, ready for the model."""

    ids: torch.Tensor
    """int64 [T]"""
    positions: torch.Tensor
    """int64 [T]"""
    logit_rows: torch.Tensor
    """int64 [L]: the last query token of each row that samples."""
    groups: tuple[GroupStep, ...]
    query_starts: Ints
    """[R + 1], on the host."""
    sample_slots: list[int]
    """Slots of the rows that sample, in row order."""
    sample_positions: Ints
    """[L]: index in prompt and output of the token to be sampled."""


@attrs.frozen(eq=False)
class _Columns:
    """Host columns of a step and what follows from them."""

    starts: Ints
    counts: Ints
    query_starts: Ints
    kv_lens: Ints
    encoder_lens: Ints

    @classmethod
    def of(
        cls, starts: Sequence[int], counts: Sequence[int], encoder_lens: Sequence[int] = ()
    ) -> _Columns:
        starts_, counts_ = np.asarray(starts, np.int64), np.asarray(counts, np.int64)
        bounds = np.concatenate((np.zeros(1, np.int64), counts_.cumsum()))
        encoded = np.asarray(encoder_lens or [0] * len(starts_), np.int64)
        return cls(starts_, counts_, bounds, starts_ + counts_, encoded)


@attrs.frozen(eq=False)
class _Tokens:
    """Where the query tokens are."""

    row_of: torch.Tensor
    """int64 [T]: row of each."""
    positions: torch.Tensor
    """int64 [T]"""


def prepare(plan: StepPlan, slots: Slots) -> StepInputs:
    """Inputs of a plan with at least one row, whose differences `slots` has taken."""
    encoder_lens = [slots.encoder_tokens.get(slot, 0) for slot in plan.slots]
    columns = _Columns.of(plan.starts, plan.counts, encoder_lens)
    places = np.asarray(plan.slots, np.int64)
    slot_of, starts, counts, begins = _upload(
        slots.device, places, columns.starts, columns.counts, columns.query_starts[:-1]
    )
    total = int(columns.query_starts[-1])
    row_of = _row_of(counts, total)
    positions = (starts - begins)[row_of] + torch.arange(total, device=slots.device)
    tokens = _Tokens(row_of, positions)
    samples = np.asarray(plan.samples, np.bool_)
    groups = tuple(
        _group_step(
            group,
            columns,
            [lists[slot] for slot in plan.slots],
            table[slot_of, : _most_blocks(columns, group)],
            tokens,
        )
        for group, table, lists in zip(slots.groups, slots.tables, slots.block_lists, strict=True)
    )
    return StepInputs(
        ids=slots.tokens[slot_of[row_of], positions].long(),
        positions=positions,
        logit_rows=torch.from_numpy(columns.query_starts[1:][samples] - 1).to(slots.device),
        groups=groups,
        query_starts=columns.query_starts,
        sample_slots=places[samples].tolist(),
        sample_positions=columns.kv_lens[samples],
    )


def dummy_inputs(
    counts: Sequence[int], groups: Sequence[KVGroup], device: torch.device
) -> StepInputs:
    """A step that belongs to no request, of rows with `counts` tokens each.

    It reads and writes the null block only.
    """
    columns = _Columns.of([0] * len(counts), counts)
    lengths, begins = _upload(device, columns.counts, columns.query_starts[:-1])
    total = int(columns.query_starts[-1])
    row_of = _row_of(lengths, total)
    positions = torch.arange(total, device=device) - begins[row_of]
    tokens = _Tokens(row_of, positions)
    steps = []
    for group in groups:
        most = _most_blocks(columns, group)
        table = torch.zeros((len(counts), most), dtype=torch.int32, device=device)
        steps.append(_group_step(group, columns, [[0] * most] * len(counts), table, tokens))
    return StepInputs(
        ids=torch.zeros(total, dtype=torch.int64, device=device),
        positions=positions,
        logit_rows=torch.from_numpy(columns.query_starts[1:] - 1).to(device),
        groups=tuple(steps),
        query_starts=columns.query_starts,
        sample_slots=[],
        sample_positions=columns.kv_lens,
    )


def _upload(device: torch.device, *columns: Ints) -> torch.Tensor:
    """All columns in one transfer: int64 [columns, R]."""
    return torch.from_numpy(np.stack(columns)).to(device)


def _row_of(counts: torch.Tensor, total: int) -> torch.Tensor:
    """Row of each query token: int64 [T]."""
    rows = torch.arange(len(counts), device=counts.device)
    if total == len(counts):
        return rows  # one token each
    return torch.repeat_interleave(rows, counts, output_size=total)


def _most_blocks(columns: _Columns, group: KVGroup) -> int:
    cross = isinstance(group.spec, CrossAttentionSpec)
    lengths = columns.encoder_lens if cross else columns.kv_lens
    return -(-int(lengths.max()) // group.block_size)


def _group_step(
    group: KVGroup,
    columns: _Columns,
    block_lists: Sequence[Sequence[int]],
    table: torch.Tensor,
    tokens: _Tokens,
) -> GroupStep:
    """The step as one group sees it; ``table [R, most blocks]`` are the rows' block tables."""
    if isinstance(group.spec, RecurrentSpec):
        return recurrent_step(group, columns.starts, columns.counts, table)
    if isinstance(group.spec, CrossAttentionSpec):
        return _cross_step(group, columns, block_lists, table)
    return _attention_step(group, columns, block_lists, table, tokens)


def _attention_step(
    group: KVGroup,
    columns: _Columns,
    block_lists: Sequence[Sequence[int]],
    table: torch.Tensor,
    tokens: _Tokens,
) -> AttentionStep:
    """The step of a group that keeps something per token of the request."""
    blocks = table[tokens.row_of, tokens.positions // group.block_size].long()
    device = table.device
    return AttentionStep(
        query_lens=columns.counts.tolist(),
        kv_lens=columns.kv_lens.tolist(),
        block_lists=block_lists,
        query_starts=torch.from_numpy(columns.query_starts.astype(np.int32)).to(device),
        kv_lens_device=torch.from_numpy(columns.kv_lens.astype(np.int32)).to(device),
        block_table=table,
        slots=blocks * group.block_size + tokens.positions % group.block_size,
    )


def _cross_step(
    group: KVGroup, columns: _Columns, block_lists: Sequence[Sequence[int]], table: torch.Tensor
) -> AttentionStep:
    """The step of a group that keeps the encoder's tokens."""
    device, lengths = table.device, columns.encoder_lens
    new = np.where(columns.starts == 0, lengths, 0)
    rows = np.repeat(np.arange(len(new)), new)
    offsets = np.concatenate([np.arange(count) for count in (*new, 0)])
    row_of, places = torch.from_numpy(np.stack((rows, offsets)).astype(np.int64)).to(device)
    blocks = table[row_of, places // group.block_size].long()
    return AttentionStep(
        query_lens=columns.counts.tolist(),
        kv_lens=lengths.tolist(),
        block_lists=block_lists,
        query_starts=torch.from_numpy(columns.query_starts.astype(np.int32)).to(device),
        kv_lens_device=torch.from_numpy(lengths.astype(np.int32)).to(device),
        block_table=table,
        slots=blocks * group.block_size + places % group.block_size,
    )
