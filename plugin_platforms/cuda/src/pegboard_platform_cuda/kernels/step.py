"""What a recorded decode step reads, gathered by one launch for each KV group.

Bytes are few (a block table of 1,024 tokens is 256 bytes), so the floor is that of a launch.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, check-untyped-defs=False
from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from pegboard.nn.step_ops import FIXED, PER_GROUP, DecodeInputs, common_prefixes

__all__ = ["decode_inputs"]

_TILE = 256
"""Entries of a block table that are copied at a time."""


@triton.jit(do_not_specialize=["rows"])
def _inputs_kernel(
    columns, tokens, table, slots, positions, ids, kv_lens, gathered, places, rows, tokens_line,
    table_line, gathered_line,
    GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr, FIXED: tl.constexpr, PER_GROUP: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(columns + row).to(tl.int64)
    position = tl.load(columns + rows + row)
    length = tl.load(columns + 2 * rows + row)
    change = columns + (FIXED + PER_GROUP * GROUP) * rows + row
    line = tl.load(change).to(tl.int64)
    entry = tl.load(change + rows)
    block = tl.load(change + 2 * rows)
    if GROUP == 0:
        tl.store(slots + row, slot)
        tl.store(positions + row, position.to(tl.int64))
        tl.store(kv_lens + row, length)
        tl.store(ids + row, tl.load(tokens + slot * tokens_line + position).to(tl.int64))
    tl.store(table + line * table_line + entry, block)
    # What was just stored is taken from the register: the store may not be seen yet.
    own = line == slot
    here = position // BLOCK_SIZE
    kept = tl.load(table + slot * table_line + here)
    found = tl.where(own & (entry == here), block, kept).to(tl.int64)
    place = found * BLOCK_SIZE + position % BLOCK_SIZE
    tl.store(places + row, tl.where(length > 0, place, -1))
    for first in range(0, tl.cdiv(length, BLOCK_SIZE), TILE):
        number = first + tl.arange(0, TILE)
        inside = number * BLOCK_SIZE < length
        held = tl.load(table + slot * table_line + number, mask=inside, other=0)
        held = tl.where(own & (number == entry), block, held)
        tl.store(gathered + row.to(tl.int64) * gathered_line + number, held, mask=inside)


def decode_inputs(
    columns: torch.Tensor,
    tokens: torch.Tensor,
    tables: Sequence[torch.Tensor],
    block_sizes: Sequence[int],
) -> DecodeInputs:
    """`pegboard.nn.step_ops.decode_inputs`; tables are filled as far as rows have blocks."""
    rows, device = columns.shape[1], columns.device
    slots, positions, ids = torch.empty((3, rows), dtype=torch.int64, device=device)
    kv_lens = torch.empty(rows, dtype=torch.int32, device=device)
    places = torch.empty((len(tables), rows), dtype=torch.int64, device=device)
    gathered = tuple(
        torch.empty((rows, table.shape[1]), dtype=torch.int32, device=device) for table in tables
    )
    for group, (table, size) in enumerate(zip(tables, block_sizes, strict=True)):
        _inputs_kernel[(rows,)](
            columns,
            tokens,
            table,
            slots,
            positions,
            ids,
            kv_lens,
            gathered[group],
            places[group],
            rows,
            tokens.stride(0),
            table.stride(0),
            gathered[group].stride(0),
            GROUP=group,
            BLOCK_SIZE=size,
            FIXED=FIXED,
            PER_GROUP=PER_GROUP,
            TILE=_TILE,
            num_warps=2,
        )
    prefixes = common_prefixes(columns, len(tables))
    return DecodeInputs(slots, positions, ids, kv_lens, gathered, tuple(places), prefixes)
