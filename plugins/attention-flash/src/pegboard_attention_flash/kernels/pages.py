"""Keys and values of some tokens of one row, out of their pages.

Bound by memory: each number is read once and written once.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["copy_tokens"]


@triton.jit(
    do_not_specialize=["first", "count", "room"],
    do_not_specialize_on_alignment=["table"],
)
def copy_tokens(
    kv: tl.tensor,
    table: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    first: tl.tensor,
    count: tl.tensor,
    kv_side: tl.tensor,
    kv_block: tl.tensor,
    kv_head: tl.tensor,
    kv_token: tl.tensor,
    key_token: tl.tensor,
    key_head: tl.tensor,
    value_token: tl.tensor,
    value_head: tl.tensor,
    room: tl.tensor,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Tokens `first` to ``first + count`` of the row whose block ids are `table`, and zeros behind
    them: ``keys`` and ``values [room, heads, DIM]``. Programs: tiles of tokens, heads."""
    dim = tl.arange(0, triton.next_power_of_2(DIM))
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    head = tl.program_id(1).to(tl.int64)
    real = place < count
    token = first + place
    block = tl.load(table + token // BLOCK, real, 0).to(tl.int64)
    spot = block * kv_block + (token % BLOCK).to(tl.int64) * kv_token + head * kv_head
    spots = kv + spot[:, None] + dim[None, :]
    wanted = real[:, None] & (dim < DIM)[None, :]
    key = tl.load(spots, wanted, 0.0)
    value = tl.load(spots + kv_side, wanted, 0.0)
    kept = (place < room)[:, None] & (dim < DIM)[None, :]
    row = place.to(tl.int64)[:, None]
    tl.store(keys + row * key_token + head * key_head + dim[None, :], key, kept)
    tl.store(values + row * value_token + head * value_head + dim[None, :], value, kept)
