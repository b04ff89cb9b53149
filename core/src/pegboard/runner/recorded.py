"""Decode steps as recordings: one for each number of rows that is worth its own.

A step in which every row computes one token and samples is, on a device that records, a replay of
everything from the embedding to the sampled ids. What differs between two such steps lies in a few
columns that are sent beforehand; all else is on the device already, in `Slots`. A step runs in the
smallest recording that has room for it; rows that it does not need point to the spare slot, have no
tokens and store nothing.

The forward pass and the choice of tokens are recorded apart, since rows with penalties, masks or
log-probabilities are sampled by operations that follow what the host knows of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np
import torch

from pegboard.api.attention import AttentionStep
from pegboard.api.kv import (
    ChunkedLocalSpec,
    FullAttentionSpec,
    KVGroup,
    KVTensors,
    SlidingWindowSpec,
)
from pegboard.api.model import Batch, LanguageModel
from pegboard.api.platform import Execution, Recording
from pegboard.api.step import StepPlan
from pegboard.nn import OpTable
from pegboard.nn.step_ops import FIXED, PER_GROUP, DecodeInputs
from pegboard.nn.transit import send
from pegboard.runner.attention import GroupAttention, capturable, plan_groups
from pegboard.runner.slots import Limits, Slots

__all__ = ["DecodeRecordings", "bucket_sizes"]

_KINDS = (FullAttentionSpec, SlidingWindowSpec, ChunkedLocalSpec)


def bucket_sizes(most: int) -> tuple[int, ...]:
    """Numbers of rows that get a recording, up to `most`, which is always one of them.

    Steps of 8 up to 256 rows, of 32 beyond: padding costs at most the time of that many rows.
    """
    sizes = {1, 2, 4, *range(8, 257, 8), *range(288, most + 1, 32), most}
    return tuple(sorted(size for size in sizes if size <= most))


@attrs.frozen(eq=False)
class _Bucket:
    """The recordings of one number of rows."""

    rows: int
    forward: Recording
    choice: Recording


class DecodeRecordings:
    """Recordings of decode steps, and the memory they read and write."""

    def __init__(
        self,
        model: LanguageModel,
        slots: Slots,
        limits: Limits,
        attention: Sequence[GroupAttention],
        storage: Mapping[str, KVTensors],
        ops: OpTable,
        execution: Execution,
    ) -> None:
        self._model = model
        self._slots = slots
        self._limits = limits
        self._attention = attention
        self._storage = storage
        self._choose = ops["choose"]
        self._inputs = ops["decode_inputs"]
        self._execution = execution
        self._buckets: list[_Bucket] = []
        self.sizes = bucket_sizes(limits.max_rows)
        self.replays = 0
        """Steps that were replayed."""
        rows, device = self.sizes[-1], slots.device
        self._width = FIXED + PER_GROUP * len(slots.groups)
        self._rows = torch.arange(rows, device=device)
        self._starts = torch.arange(rows + 1, dtype=torch.int32, device=device)
        self._columns = torch.zeros(self._width * rows, dtype=torch.int32, device=device)
        self._logits = torch.zeros((0, 0), device=device)
        self._ids = torch.zeros(rows, dtype=torch.int64, device=device)
        self._status = torch.zeros(rows, dtype=torch.int8, device=device)

    @staticmethod
    def possible(
        execution: Execution, attention: Sequence[GroupAttention], groups: Sequence[KVGroup]
    ) -> bool:
        """Whether the device records, and everything in a decode step can be recorded."""
        plain = all(isinstance(group.spec, _KINDS) for group in groups)
        return execution.records and plain and capturable(attention)

    def record(self) -> None:
        """Make all recordings, the largest first, so that the others find room in its memory."""
        self._fill(self.sizes[-1], None)
        logits = self._forward(self.sizes[-1])
        self._logits = torch.zeros_like(logits)
        del logits
        buckets = []
        for rows in reversed(self.sizes):
            self._fill(rows, None)
            forward, choice = partial(self._run_forward, rows), partial(self._run_choice, rows)
            forward()  # once before, for what is made when it is first used
            choice()
            record = self._execution.record
            buckets.append(_Bucket(rows, record(forward), record(choice)))
        self._buckets = buckets[::-1]

    def serves(self, plan: StepPlan) -> bool:
        """The plan is a decode step that has a recording."""
        if not self._buckets or not 0 < plan.rows <= self.sizes[-1]:
            return False
        slots = self._slots
        if slots.prompts and any(
            slot in slots.prompts and start < slots.prompts[slot].length
            for slot, start in zip(plan.slots, plan.starts, strict=True)
        ):
            return False
        return plan.tokens == plan.rows and all(plan.samples) and not plan.draft_counts

    def forward(self, plan: StepPlan) -> torch.Tensor:
        """Replay the forward pass: ``[rows, vocab]``, valid until the next."""
        bucket = self._bucket(plan.rows)
        self._fill(bucket.rows, plan)
        bucket.forward.replay()
        self.replays += 1
        return self._logits[: plan.rows]

    def choose(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Replay the choice from the logits of the last forward pass: ids and status, ``[rows]``,
        valid until the next. The ids are where the next step reads them."""
        self._bucket(rows).choice.replay()
        return self._ids[:rows], self._status[:rows]

    def _bucket(self, rows: int) -> _Bucket:
        return next(bucket for bucket in self._buckets if bucket.rows >= rows)

    def _view(self, rows: int) -> torch.Tensor:
        """The columns of a recording: int32 [columns, rows]."""
        return self._columns[: self._width * rows].view(self._width, rows)

    def _fill(self, rows: int, plan: StepPlan | None) -> None:
        """Send the columns of a plan, of none for a recording without requests."""
        spare = self._slots.spare
        columns = np.zeros((self._width, rows), np.int32)
        columns[0] = spare
        columns[FIXED::PER_GROUP] = spare
        if plan is not None:
            count = plan.rows
            columns[0, :count] = plan.slots
            columns[1, :count] = plan.starts
            columns[2, :count] = columns[1, :count] + 1
            self._fill_blocks(columns, plan)
            for group, blocks in enumerate(plan.common_prefix):
                shared = blocks * self._slots.groups[group].block_size
                columns[FIXED + PER_GROUP * (group + 1) - 1, 0] = shared
        (there,) = send(self._slots.device, columns)
        self._view(rows).copy_(there)

    def _fill_blocks(self, columns: Any, plan: StepPlan) -> None:
        for group, changes in enumerate(self._slots.take_blocks()):
            if changes:
                place = FIXED + PER_GROUP * group
                for row, slot in enumerate(plan.slots):
                    if slot in changes:
                        columns[place : place + 3, row] = changes[slot]

    def _run_forward(self, rows: int) -> None:
        self._logits[:rows] = self._forward(rows)

    def _forward(self, rows: int) -> torch.Tensor:
        """The forward pass from the columns on; the host gives it no values."""
        slots = self._slots
        inputs: DecodeInputs = self._inputs(
            self._view(rows), slots.tokens, slots.tables, [g.block_size for g in slots.groups]
        )
        steps = [self._group_step(inputs, number) for number in range(len(slots.groups))]
        batch = Batch(
            ids=inputs.ids,
            positions=inputs.positions,
            logit_rows=self._rows[:rows],
            groups=plan_groups(self._attention, steps),
            kv=self._storage,
        )
        return self._model.logits(self._model.forward(batch), batch)

    def _group_step(self, inputs: DecodeInputs, group: int) -> AttentionStep:
        rows = len(inputs.slots)
        return AttentionStep(
            query_lens=[1] * rows,
            kv_lens=[self._limits.max_model_len] * rows,
            block_lists=(),
            query_starts=self._starts[: rows + 1],
            kv_lens_device=inputs.kv_lens,
            block_table=inputs.tables[group],
            slots=inputs.places[group],
            captured=True,
            common_prefix=self._limits.max_model_len,
            common_prefix_device=inputs.prefixes[group],
        )

    def _run_choice(self, rows: int) -> None:
        columns = self._view(rows).long()
        slots, positions = columns[0], columns[1] + 1
        parameters = self._slots.sampling.columns(slots)
        ids, status = self._choose(self._logits[:rows], *parameters.arguments(positions))
        self._ids[:rows] = ids
        self._status[:rows] = status
        self._slots.write(slots, positions, ids)
