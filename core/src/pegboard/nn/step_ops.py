"""The op that turns the columns of a recorded decode step into what a forward pass reads."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch

__all__ = ["DecodeInputs", "common_prefixes", "decode_inputs"]

FIXED = 3
"""Columns of every step: slot, position, KV length."""
PER_GROUP = 4
"""Columns of each group: line of its table to change, entry, new block id; tokens of the common
prefix, in the first row alone."""


@attrs.frozen(eq=False)
class DecodeInputs:
    """What one decode step of R rows reads, all on the device."""

    slots: torch.Tensor
    """int64 [R]"""
    positions: torch.Tensor
    """int64 [R]"""
    ids: torch.Tensor
    """int64 [R]: the last known token of each row."""
    kv_lens: torch.Tensor
    """int32 [R]"""
    tables: tuple[torch.Tensor, ...]
    """Per group, the block tables of the rows: int32 [R, blocks]. Entries behind the last block
    that a row has may hold anything."""
    places: tuple[torch.Tensor, ...]
    """Per group, where the keys and values of the new tokens go: int64 [R], -1 for nowhere."""
    prefixes: tuple[torch.Tensor, ...]
    """Per group, tokens that all rows share: int32 [1], parts of the columns."""


def decode_inputs(
    columns: torch.Tensor,
    tokens: torch.Tensor,
    tables: Sequence[torch.Tensor],
    block_sizes: Sequence[int],
) -> DecodeInputs:
    """Change block tables as the columns say, then gather what the rows need.

    ``columns int32 [3 + 4 groups, R]``: slot, position and KV length of each row (0: the row is
    empty and stores nothing), then for each group the line of ``tables[group] int32 [lines,
    blocks]``, the entry, and the block id to put there, which is that of the row's own slot or of a
    line that nobody reads, and, in the first row, the tokens that all rows share. ``tokens int32
    [lines, positions]`` holds the requests' tokens.
    """
    wide = columns.long()
    slots, positions, kv_lens = wide[0], wide[1], columns[2]
    gathered, places = [], []
    for group, (table, size) in enumerate(zip(tables, block_sizes, strict=True)):
        lines, entries, ids = wide[FIXED + PER_GROUP * group :][:3]
        table[lines, entries] = ids.to(torch.int32)
        blocks = table[slots, positions // size].long()
        stored = blocks * size + positions % size
        gathered.append(table[slots])
        places.append(torch.where(kv_lens > 0, stored, -1))
    return DecodeInputs(
        slots,
        positions,
        tokens[slots, positions].long(),
        kv_lens,
        tuple(gathered),
        tuple(places),
        common_prefixes(columns, len(tables)),
    )


def common_prefixes(columns: torch.Tensor, groups: int) -> tuple[torch.Tensor, ...]:
    """`DecodeInputs.prefixes` of these columns."""
    return tuple(columns[FIXED + PER_GROUP * (group + 1) - 1, :1] for group in range(groups))
