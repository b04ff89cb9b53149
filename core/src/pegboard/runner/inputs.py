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
from pegboard.nn.transit import send
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
    """Columns of a step's rows and what follows from them, on the host and on the device."""

    starts: Ints
    counts: Ints
    query_starts: Ints
    kv_lens: Ints
    encoder_lens: Ints
    prefixes: Ints
    """Per group, tokens that all rows share."""
    on_device: tuple[torch.Tensor, ...]
    """int64: slots, counts, first query tokens; int32: query starts, KV lengths, encoder lengths,
    shared tokens per group; int64: last query tokens of the rows that sample."""

    @classmethod
    def of(
        cls,
        device: torch.device,
        slots: Sequence[int],
        starts: Sequence[int],
        counts: Sequence[int],
        samples: Sequence[bool],
        prefixes: Sequence[int],
        encoder_lens: Sequence[int] = (),
    ) -> _Columns:
        starts_, counts_ = np.asarray(starts, np.int64), np.asarray(counts, np.int64)
        bounds = np.concatenate((np.zeros(1, np.int64), counts_.cumsum()))
        encoded = np.asarray(encoder_lens or [0] * len(starts_), np.int64)
        shared = np.asarray(prefixes, np.int64)
        kv_lens = starts_ + counts_
        there = send(
            device,
            np.asarray(slots, np.int64),
            counts_,
            starts_ - bounds[:-1],
            bounds.astype(np.int32),
            kv_lens.astype(np.int32),
            encoded.astype(np.int32),
            shared.astype(np.int32),
            bounds[1:][np.asarray(samples, np.bool_)] - 1,
        )
        return cls(starts_, counts_, bounds, kv_lens, encoded, shared, tuple(there))

    def tokens(self) -> _Tokens:
        """The query tokens: rows one after the other."""
        counts, shifts = self.on_device[1:3]
        total = int(self.query_starts[-1])
        row_of = _row_of(counts, total)
        places = torch.arange(total, device=counts.device)
        return _Tokens(row_of, shifts[row_of] + places)


@attrs.frozen(eq=False)
class _Tokens:
    """Where the query tokens are."""

    row_of: torch.Tensor
    """int64 [T]: row of each."""
    positions: torch.Tensor
    """int64 [T]"""


def prepare(plan: StepPlan, slots: Slots) -> StepInputs:
    """Inputs of a plan with at least one row, whose differences `slots` has taken."""
    slots.send_blocks()
    encoder_lens = [slots.encoder_tokens.get(slot, 0) for slot in plan.slots]
    columns = _Columns.of(
        slots.device,
        plan.slots,
        plan.starts,
        plan.counts,
        plan.samples,
        _shared_tokens(plan.common_prefix, slots.groups),
        encoder_lens,
    )
    slot_of, logit_rows = columns.on_device[0], columns.on_device[-1]
    tokens = columns.tokens()
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
    samples = np.asarray(plan.samples, np.bool_)
    return StepInputs(
        ids=slots.tokens[slot_of[tokens.row_of], tokens.positions].long(),
        positions=tokens.positions,
        logit_rows=logit_rows,
        groups=groups,
        query_starts=columns.query_starts,
        sample_slots=np.asarray(plan.slots, np.int64)[samples].tolist(),
        sample_positions=columns.kv_lens[samples],
    )


def dummy_inputs(
    counts: Sequence[int],
    starts: Sequence[int],
    groups: Sequence[KVGroup],
    device: torch.device,
) -> StepInputs:
    """A step that belongs to no request, of rows with `counts` tokens each after `starts` others.

    It reads and writes the null block only.
    """
    rows = len(counts)
    prefixes = _shared_tokens((), groups)
    columns = _Columns.of(device, [0] * rows, starts, counts, [True] * rows, prefixes)
    tokens = columns.tokens()
    steps = []
    for group in groups:
        most = _most_blocks(columns, group)
        table = torch.zeros((len(counts), most), dtype=torch.int32, device=device)
        steps.append(_group_step(group, columns, [[0] * most] * len(counts), table, tokens))
    return StepInputs(
        ids=torch.zeros_like(tokens.positions),
        positions=tokens.positions,
        logit_rows=columns.on_device[-1],
        groups=tuple(steps),
        query_starts=columns.query_starts,
        sample_slots=[],
        sample_positions=columns.kv_lens,
    )


def _shared_tokens(blocks: Sequence[int], groups: Sequence[KVGroup]) -> list[int]:
    """Per group, the tokens of a common prefix of so many blocks; of none where not a group has
    any."""
    if not blocks:
        return [0] * len(groups)
    return [count * group.block_size for count, group in zip(blocks, groups, strict=True)]


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
    return AttentionStep(
        query_lens=columns.counts.tolist(),
        kv_lens=columns.kv_lens.tolist(),
        block_lists=block_lists,
        query_starts=columns.on_device[3],
        kv_lens_device=columns.on_device[4],
        block_table=table,
        slots=blocks * group.block_size + tokens.positions % group.block_size,
        common_prefix=int(columns.prefixes[group.index]),
        common_prefix_device=columns.on_device[6][group.index : group.index + 1],
    )


def _cross_step(
    group: KVGroup, columns: _Columns, block_lists: Sequence[Sequence[int]], table: torch.Tensor
) -> AttentionStep:
    """The step of a group that keeps the encoder's tokens."""
    device, lengths = table.device, columns.encoder_lens
    new = np.where(columns.starts == 0, lengths, 0)
    rows = np.repeat(np.arange(len(new)), new)
    offsets = np.concatenate([np.arange(count) for count in (*new, 0)])
    row_of, places = send(device, rows, offsets.astype(np.int64))
    blocks = table[row_of, places // group.block_size].long()
    return AttentionStep(
        query_lens=columns.counts.tolist(),
        kv_lens=lengths.tolist(),
        block_lists=block_lists,
        query_starts=columns.on_device[3],
        kv_lens_device=columns.on_device[5],
        block_table=table,
        slots=blocks * group.block_size + places % group.block_size,
    )
