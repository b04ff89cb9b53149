"""Rows with several query tokens: attention over pages, tile by tile.

After Dao, "FlashAttention-2", 2023. A program computes one *tile*: some query tokens of one row
with all query heads of one key head, up to `TILE_M` pairs of both. It visits the keys that some
query of the tile sees; only at the borders of that range, where not every query sees every key, are
scores masked.

Arithmetic bounds it: 4 * heads * dim per pair of a query and a key that it sees.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pegboard_attention_triton.kernels.softmax import (
    FLOOR,
    absorb,
    begin_with,
    narrowed,
    page_offsets,
    whole,
)

__all__ = ["TILE_FIELDS", "prefill"]

TILE_FIELDS = 5
"""int32 numbers per tile: row, key head, first query token of the step, query tokens, place of the
first in its request."""


@triton.jit(do_not_specialize_on_alignment=["table", "tiles"], do_not_specialize=["table_row"])
def prefill(
    query: tl.tensor,
    out: tl.tensor,
    kv: tl.tensor,
    sinks: tl.tensor,
    table: tl.tensor,
    tiles: tl.tensor,
    k_scale: tl.tensor,
    v_scale: tl.tensor,
    query_token: tl.tensor,
    query_head: tl.tensor,
    kv_side: tl.tensor,
    kv_block: tl.tensor,
    kv_head: tl.tensor,
    kv_token: tl.tensor,
    table_row: tl.tensor,
    scale: tl.tensor,
    cap: tl.tensor,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE: tl.constexpr,
    KIND: tl.constexpr,
    SPAN: tl.constexpr,
    DOT: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    SINKS: tl.constexpr,
    SCALED: tl.constexpr,
) -> None:
    """One tile: ``query`` and ``out [T, HEADS, DIM]``, `out` without gaps, ``sinks [HEADS]`` if
    `SINKS`; scales as in `decode`."""
    WIDTH: tl.constexpr = triton.next_power_of_2(DIM)
    tile = tiles + tl.program_id(0) * 5
    row = tl.load(tile).to(tl.int64)
    head = tl.load(tile + 1)
    count = tl.load(tile + 3)
    position = tl.load(tile + 4)

    dim = tl.arange(0, WIDTH)
    nth, tokens, heads, held = pairs_of(tile, GROUP, TILE_M)
    live = held[:, None] & (dim < DIM)[None, :]
    asked = tl.load(
        query + tokens[:, None] * query_token + heads[:, None] * query_head + dim[None, :],
        live,
        0.0,
    )

    # Of its request: where each query stands, and the first token that each sees.
    where = position + nth
    stop = position + count
    if KIND == "sliding":
        low = where - (SPAN - 1)
        first = tl.maximum(position - (SPAN - 1), 0)
        last_low = tl.maximum(stop - SPAN, 0)
    elif KIND == "chunked":
        low = where // SPAN * SPAN
        first = position // SPAN * SPAN
        last_low = (stop - 1) // SPAN * SPAN
    else:
        low = tl.zeros([TILE_M], tl.int32)
        first = 0
        last_low = 0
    # Every query sees every token from `left` to `right`, which are ends of key tiles.
    begin = first // BLOCK * BLOCK
    left = begin + tl.cdiv(last_low - begin, TILE) * TILE
    right = tl.maximum(begin + (position + 1 - begin) // TILE * TILE, left)

    result_scale = 1.0
    if SCALED:
        scale *= tl.load(k_scale)
        result_scale = tl.load(v_scale)
    asked, scale = narrowed(asked, scale, DOT)
    if tl.float16 == DOT and query.dtype.element_ty == tl.bfloat16:
        # Queries stay in shared memory only if they were loaded as they are; else each warp holds
        # its own in registers, of which there are too few. So they are stored and loaded: the
        # place of the result is this program's alone, and as large.
        spare = out.to(tl.pointer_type(DOT), bitcast=True)
        spare += (tokens * HEADS + heads)[:, None] * DIM + dim[None, :]
        tl.store(spare, asked, live)
        tl.debug_barrier()
        asked = tl.load(spare, live, 0.0)
    acc = tl.zeros([TILE_M, WIDTH], tl.float32)
    total = tl.zeros([TILE_M], tl.float32)
    peak = tl.full([TILE_M], FLOOR, tl.float32)
    if SINKS:
        peak, total = begin_with(sinks + heads, held)
    blocks = table + row * table_row
    offset = head.to(tl.int64) * kv_head
    if KIND != "full":
        acc, total, peak = visit(
            acc, total, peak, asked, kv, blocks, offset, begin, left, first, stop, where, low,
            kv_side, kv_block, kv_token, scale, cap, DIM, BLOCK, TILE, True, DOT, SOFT_CAP,
        )  # fmt: skip
    acc, total, peak = visit(
        acc, total, peak, asked, kv, blocks, offset, left, right, first, stop, where, low,
        kv_side, kv_block, kv_token, scale, cap, DIM, BLOCK, TILE, False, DOT, SOFT_CAP,
    )  # fmt: skip
    acc, total, peak = visit(
        acc, total, peak, asked, kv, blocks, offset, right, stop, first, stop, where, low,
        kv_side, kv_block, kv_token, scale, cap, DIM, BLOCK, TILE, True, DOT, SOFT_CAP,
    )  # fmt: skip

    result = acc * (result_scale / tl.where(total == 0.0, 1.0, total))[:, None]
    # Read once more, not held in registers until here.
    _, tokens, heads, held = pairs_of(tile, GROUP, TILE_M)
    live = held[:, None] & (dim < DIM)[None, :]
    target = out + (tokens * HEADS + heads)[:, None] * DIM + dim[None, :]
    tl.store(target, result.to(out.dtype.element_ty), live)


@triton.jit
def pairs_of(tile: tl.tensor, GROUP: tl.constexpr, TILE_M: tl.constexpr) -> tl.tensor:
    """The pairs of a query token and a head of a tile: token in the tile, in the step, head, and
    whether the pair exists; ``[TILE_M]`` each."""
    pair = tl.arange(0, TILE_M)
    nth = pair // GROUP
    tokens = (tl.load(tile + 2) + nth).to(tl.int64)
    return nth, tokens, tl.load(tile + 1) * GROUP + pair % GROUP, nth < tl.load(tile + 3)


@triton.jit
def visit(
    acc: tl.tensor,
    total: tl.tensor,
    peak: tl.tensor,
    asked: tl.tensor,
    kv: tl.tensor,
    blocks: tl.tensor,
    offset: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    first: tl.tensor,
    stop: tl.tensor,
    where: tl.tensor,
    low: tl.tensor,
    kv_side: tl.tensor,
    kv_block: tl.tensor,
    kv_token: tl.tensor,
    scale: tl.tensor,
    cap: tl.tensor,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    MASKED: tl.constexpr,
    DOT: tl.constexpr,
    SOFT_CAP: tl.constexpr,
) -> tl.tensor:
    """The state after the key tiles from `begin` to `end`, of which tokens `first` to `stop` may be
    read; not `MASKED`: all of them, by every query."""
    dim = tl.arange(0, triton.next_power_of_2(DIM))
    for at in range(begin, end, TILE):
        place = at + tl.arange(0, TILE)
        if MASKED:
            valid = (place >= first) & (place < stop)
            seen = (place[None, :] <= where[:, None]) & (place[None, :] >= low[:, None])
        else:
            valid = None
            seen = None
        spot = page_offsets(blocks, place, valid, offset, kv_block, kv_token, BLOCK)
        spots = kv + spot[:, None] + dim[None, :]
        if MASKED:
            wanted = valid[:, None] & (dim < DIM)[None, :]
            key = tl.load(spots, wanted, 0.0)
            value = tl.load(spots + kv_side, wanted, 0.0)
        else:
            key = whole(spots, dim, DIM)
            value = whole(spots + kv_side, dim, DIM)
        acc, total, peak = absorb(
            acc,
            total,
            peak,
            asked,
            key.to(DOT),
            value.to(DOT),
            seen,
            scale,
            cap,
            MASKED,
            SOFT_CAP,
        )
    return acc, total, peak
