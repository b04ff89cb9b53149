"""The persistent batch: what a step reads about running requests, in preallocated device tensors.

A plan sends differences only: a new request once, then its further blocks. A sampled token is
written where the next step will read it, so the host need not know it before.

Layout, for S slots and a context of C tokens::

    tokens   int32 [S, C + 1]      prompt and output; a row's last known token is at length - 1
    tables   int32 [S, blocks]     one per KV group; places that hold no block are 0
    sampling                       parameters and token counts, see `pegboard.sampling.state`

Lengths are on the host only: each plan says where its rows start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import torch

from pegboard.api.kv import CrossAttentionSpec, KVGroup
from pegboard.api.step import NewRow, StepPlan
from pegboard.sampling.state import SamplingState

__all__ = ["Limits", "Slots"]

Ints = np.ndarray[Any, np.dtype[np.int64]]


@attrs.frozen
class Limits:
    """The sizes that everything is preallocated for."""

    max_rows: int
    """Slots, and most requests in a step."""
    max_tokens: int
    """Most query tokens in a step."""
    max_model_len: int
    """Most tokens of prompt and output."""
    vocab_size: int


@attrs.frozen
class _Prompt:
    """What prompt log-probabilities need to know of a request."""

    length: int
    width: int
    """Alternatives wanted per position, -1 for all."""


class Slots:
    """State of up to ``limits.max_rows`` requests."""

    def __init__(self, limits: Limits, groups: Sequence[KVGroup], device: torch.device) -> None:
        self.groups = tuple(groups)
        self.device = device
        rows, width = limits.max_rows, limits.max_model_len + 1
        self.tokens = torch.empty((rows, width), dtype=torch.int32, device=device)
        self.tables = tuple(
            torch.zeros((rows, _table_width(g, width)), dtype=torch.int32, device=device)
            for g in self.groups
        )
        self.block_lists: tuple[list[list[int]], ...] = tuple(
            [[] for _ in range(rows)] for _ in self.groups
        )
        """Per group and slot: the host's copy of the block table."""
        self.sampling = SamplingState(rows, limits.vocab_size, device)
        self.prompts: dict[int, _Prompt] = {}
        """By slot, the requests that want log-probabilities of their prompt."""
        self.encoder_tokens: dict[int, int] = {}
        """By slot, the requests that have tokens of an encoder."""
        self._changes: tuple[list[tuple[int, int, int]], ...] = tuple([] for _ in self.groups)

    def apply(self, plan: StepPlan) -> None:
        """Take the differences of a plan: first freed slots, then new requests, then new blocks."""
        if plan.resync:
            self._clear()
        for slot in plan.freed_slots:
            self._free(slot)
        for row in plan.new_rows:
            self._admit(row)
        for slot, blocks in zip(plan.slots, plan.new_blocks, strict=True):
            self._append_blocks(slot, blocks)
        self._send_blocks()

    def append(self, slots: Sequence[int], positions: Ints, ids: torch.Tensor) -> None:
        """Write the tokens ``ids [R]`` sampled for `slots` at `positions`."""
        place = torch.from_numpy(np.stack((np.asarray(slots, dtype=np.int64), positions)))
        rows, columns = place.to(self.device)
        self.tokens[rows, columns] = ids.to(torch.int32)
        self.sampling.append(slots, ids)

    def _clear(self) -> None:
        for slot in range(len(self.tokens)):
            self._free(slot)

    def _free(self, slot: int) -> None:
        self.sampling.release(slot)
        self.prompts.pop(slot, None)
        self.encoder_tokens.pop(slot, None)
        for lists in self.block_lists:
            lists[slot] = []

    def _admit(self, row: NewRow) -> None:
        self._free(row.slot)
        known = np.array(row.prompt_ids + row.output_ids, dtype=np.int32)
        self.tokens[row.slot, : len(known)] = torch.from_numpy(known).to(self.device)
        self.sampling.admit(row)
        width = row.params.prompt_logprobs
        if width is not None:
            self.prompts[row.slot] = _Prompt(len(row.prompt_ids), width)
        if row.encoder_tokens:
            self.encoder_tokens[row.slot] = row.encoder_tokens
        for table in self.tables:
            table[row.slot].zero_()
        self._append_blocks(row.slot, row.blocks)

    def _append_blocks(self, slot: int, blocks: Sequence[Sequence[int]]) -> None:
        for lists, changes, ids in zip(self.block_lists, self._changes, blocks, strict=True):
            if ids:
                held = lists[slot]
                changes.extend((slot, len(held) + i, block) for i, block in enumerate(ids))
                held.extend(ids)

    def _send_blocks(self) -> None:
        for table, changes in zip(self.tables, self._changes, strict=True):
            if changes:
                slots, columns, ids = torch.tensor(changes, dtype=torch.int64).T.to(self.device)
                table[slots, columns] = ids.to(torch.int32)
                changes.clear()


def _table_width(group: KVGroup, tokens: int) -> int:
    """Entries of a block table that has room for `tokens` tokens of a request."""
    if isinstance(group.spec, CrossAttentionSpec):
        tokens = group.spec.max_tokens
    return -(-tokens // group.block_size)
