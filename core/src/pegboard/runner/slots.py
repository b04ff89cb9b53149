"""The persistent batch: what a step reads about running requests, in preallocated device tensors.

A plan sends differences only: a new request once, then its further blocks. A sampled token is
written where the next step will read it, so the host need not know it before.

Layout, for S slots and a context of C tokens::

    tokens   int32 [S + 1, C + 1]  prompt and output; a row's last known token is at length - 1
    tables   int32 [S + 1, blocks] one per KV group; places that hold no block are 0
    sampling                       parameters and token counts, see `pegboard.sampling.state`

The last line of each belongs to no request: recorded steps point rows there that they do not need.

Lengths are on the host only: each plan says where its rows start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import torch

from pegboard.api.kv import CrossAttentionSpec, KVGroup
from pegboard.api.logits import LogitsContext
from pegboard.api.step import NewRow, StepPlan
from pegboard.config.logits import LogitsRoster
from pegboard.nn.transit import send
from pegboard.sampling.processors import LogitsRack
from pegboard.sampling.state import SamplingState

__all__ = ["BlockChange", "Limits", "Slots"]

Ints = np.ndarray[Any, np.dtype[np.int64]]

BlockChange = tuple[int, int, int]
"""Slot, entry of its block table, block id."""


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

    def __init__(
        self,
        limits: Limits,
        groups: Sequence[KVGroup],
        device: torch.device,
        processors: LogitsRoster | None = None,
    ) -> None:
        """Without `processors`, requests with logits processors are served without them."""
        self.groups = tuple(groups)
        self.device = device
        rows, width = limits.max_rows, limits.max_model_len + 1
        self.spare = rows
        """The line that belongs to no request."""
        self.tokens = torch.zeros((rows + 1, width), dtype=torch.int32, device=device)
        self.tables = tuple(
            torch.zeros((rows + 1, _table_width(g, width)), dtype=torch.int32, device=device)
            for g in self.groups
        )
        self.block_lists: tuple[list[list[int]], ...] = tuple(
            [[] for _ in range(rows)] for _ in self.groups
        )
        """Per group and slot: the host's copy of the block table."""
        rack = None
        if processors is not None and processors.processors:
            context = LogitsContext(limits.vocab_size, device, rows)
            rack = LogitsRack(processors, context, self.tokens)
        self.sampling = SamplingState(rows + 1, limits.vocab_size, device, rack)
        self.prompts: dict[int, _Prompt] = {}
        """By slot, the requests that want log-probabilities of their prompt."""
        self.encoder_tokens: dict[int, int] = {}
        """By slot, the requests that have tokens of an encoder."""
        self._changes: tuple[list[BlockChange], ...] = tuple([] for _ in self.groups)
        self._fresh: list[NewRow] = []
        """Requests whose tokens are not on the device yet."""

    def apply(self, plan: StepPlan) -> None:
        """Take the differences of a plan: first freed slots, then new requests, then new blocks.

        Those of block tables wait for `send_blocks` or `take_blocks`.
        """
        if plan.resync:
            self._clear()
        for slot in plan.freed_slots:
            self._free(slot)
        for row in plan.new_rows:
            self._admit(row)
        for slot, blocks in zip(plan.slots, plan.new_blocks, strict=True):
            self._append_blocks(slot, blocks)
        if self._fresh:
            self._send_requests()

    def write(self, slots: torch.Tensor, positions: torch.Tensor, ids: torch.Tensor) -> None:
        """Put the sampled tokens ``ids [R]`` where the next step reads them; all on the device."""
        self.tokens[slots, positions] = ids.to(torch.int32)

    def append(self, slots: Sequence[int], positions: Ints, ids: torch.Tensor) -> None:
        """Write the tokens ``ids [R]`` sampled for `slots` at `positions`, and count them."""
        lines, places = send(self.device, np.asarray(slots, dtype=np.int64), positions)
        self.write(lines, places, ids)
        self.sampling.append(slots, ids)

    def _clear(self) -> None:
        for slot in range(self.spare):
            self._free(slot)

    def _free(self, slot: int) -> None:
        self.sampling.release(slot)
        self.prompts.pop(slot, None)
        self.encoder_tokens.pop(slot, None)
        for lists in self.block_lists:
            lists[slot] = []

    def _admit(self, row: NewRow) -> None:
        self._free(row.slot)
        self._fresh.append(row)
        self.sampling.admit(row)
        width = row.params.prompt_logprobs
        if width is not None:
            self.prompts[row.slot] = _Prompt(len(row.prompt_ids), width)
        if row.encoder_tokens:
            self.encoder_tokens[row.slot] = row.encoder_tokens
        self._append_blocks(row.slot, row.blocks)

    def _send_requests(self) -> None:
        """Tokens and parameters of new requests; their block tables are emptied."""
        rows, self._fresh = self._fresh, []
        known = [np.array(row.prompt_ids + row.output_ids, dtype=np.int32) for row in rows]
        slots = np.array([row.slot for row in rows], np.int64)
        width = self.tokens.shape[1]
        places = [
            np.arange(len(ids)) + slot * width for slot, ids in zip(slots, known, strict=True)
        ]
        lines, where, ids = send(self.device, slots, np.concatenate(places), np.concatenate(known))
        self.tokens.view(-1).index_copy_(0, where, ids)
        for table in self.tables:
            table.index_fill_(0, lines, 0)
        self.sampling.flush()

    def _append_blocks(self, slot: int, blocks: Sequence[Sequence[int]]) -> None:
        for lists, changes, ids in zip(self.block_lists, self._changes, blocks, strict=True):
            if ids:
                held = lists[slot]
                changes.extend((slot, len(held) + i, block) for i, block in enumerate(ids))
                held.extend(ids)

    def send_blocks(self) -> None:
        """Bring the block tables on the device up to date."""
        changed = [number for number, changes in enumerate(self._changes) if changes]
        if not changed:
            return
        arrays = [np.array(self._changes[number], np.int64).T for number in changed]
        for number, (slots, columns, ids) in zip(changed, send(self.device, *arrays), strict=True):
            self.tables[number][slots, columns] = ids.to(torch.int32)
            self._changes[number].clear()

    def take_blocks(self) -> tuple[dict[int, BlockChange], ...]:
        """Outstanding changes of block tables by group and slot, for a step that makes them itself.

        A step has room for one per slot and group; of slots that have more, all but the last are
        sent at once.
        """
        taken = tuple({change[0]: change for change in changes} for changes in self._changes)
        for changes, last in zip(self._changes, taken, strict=True):
            changes[:] = [change for change in changes if last[change[0]] is not change]
        self.send_blocks()
        return taken


def _table_width(group: KVGroup, tokens: int) -> int:
    """Entries of a block table that has room for `tokens` tokens of a request."""
    if isinstance(group.spec, CrossAttentionSpec):
        tokens = group.spec.max_tokens
    return -(-tokens // group.block_size)
