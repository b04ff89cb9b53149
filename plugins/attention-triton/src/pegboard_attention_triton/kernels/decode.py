"""Rows with one query token: split-KV decoding.

A step's rows are cut into *pieces* of about equal length, so that short and long rows keep the
device equally busy; `cut_rows` does that on the device, once per step, so that a recorded step
follows the lengths of its replay. `decode` runs one program per piece and key head, in which the
query heads of that key head share every key that is read. Of a row in several pieces, each piece
stores its state and the one that ends last joins them, always in the order of the tokens, so
that the result does not depend on which one that was.

Bytes bound it: a step reads each key and value once, 2 * kv heads * dim * element bytes per token.
Of 8-bit floats that is half of what bfloat16 takes; to widen them in registers costs two
instructions for each, about 30 % of what the processors can issue while the bytes arrive.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pegboard_attention_triton.kernels.softmax import (
    FLOOR,
    absorb,
    begin_with,
    halves,
    page_offsets,
    weigh,
    widened,
)

__all__ = ["PIECE_FIELDS", "cut_rows", "decode"]

PIECE_FIELDS = 8
"""int32 numbers per piece: row or -1, query token, first place, end of places, first token that the
query sees, pieces of the row, where their states begin, which of them it is."""


@triton.jit(do_not_specialize=["rows", "room"])
def cut_rows(
    kv_lens: tl.tensor,
    query_starts: tl.tensor,
    pieces: tl.tensor,
    rows: tl.tensor,
    room: tl.tensor,
    KIND: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Fill ``pieces [room, PIECE_FIELDS]`` for the rows that have one query token.

    A piece has about the sum of all lengths over `PARTS` tokens, a multiple of `TILE`; those of one
    row are equally long, the last one may be shorter. One program.
    """
    row = tl.arange(0, ROWS)
    length = tl.load(kv_lens + row, mask=row < rows, other=0)
    token = tl.load(query_starts + row, mask=row < rows, other=0)
    after = tl.load(query_starts + row + 1, mask=row < rows, other=0)
    chosen = (row < rows) & (after - token == 1)
    if KIND == "sliding":
        low = tl.maximum(length - SPAN, 0)
    elif KIND == "chunked":
        low = tl.maximum(length - 1, 0) // SPAN * SPAN
    else:
        low = tl.zeros([ROWS], tl.int32)
    start = low // BLOCK * BLOCK
    places = tl.where(chosen, length - start, 0)
    share = tl.cdiv(tl.sum(places.to(tl.int64), 0), PARTS * TILE).to(tl.int32)
    share = tl.maximum(share, 1) * TILE
    # The nearest number of pieces, all of one length: a short rest would cost a piece and a join.
    count = tl.maximum((places + share // 2) // share, 1)
    step = tl.maximum(tl.cdiv(tl.cdiv(places, count), TILE), 1) * TILE
    count = tl.where(chosen, tl.maximum(tl.cdiv(places, step), 1), 0)
    first = tl.cumsum(count, 0) - count
    joined = tl.where(count > 1, count, 0)
    states = tl.cumsum(joined, 0) - joined
    for which in range(0, tl.max(count, 0)):
        here = which < count
        at = pieces + (first + which) * 8
        begin = start + which * step
        tl.store(at, row, here)
        tl.store(at + 1, token, here)
        tl.store(at + 2, begin, here)
        tl.store(at + 3, tl.minimum(begin + step, length), here)
        tl.store(at + 4, low, here)
        tl.store(at + 5, count, here)
        tl.store(at + 6, states, here)
        tl.store(at + 7, tl.zeros([ROWS], tl.int32) + which, here)
    for unused in range(tl.sum(count, 0), room, ROWS):
        place = unused + row
        tl.store(pieces + place * 8, tl.full([ROWS], -1, tl.int32), place < room)


@triton.jit(do_not_specialize_on_alignment=["table", "pieces"], do_not_specialize=["table_row"])
def decode(
    query: tl.tensor,
    out: tl.tensor,
    kv: tl.tensor,
    sinks: tl.tensor,
    table: tl.tensor,
    pieces: tl.tensor,
    states: tl.tensor,
    marks: tl.tensor,
    arrivals: tl.tensor,
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
    TILE: tl.constexpr,
    JOIN: tl.constexpr,
    DOT: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    SINKS: tl.constexpr,
    SCALED: tl.constexpr,
) -> None:
    """One piece and one key head: ``query`` and ``out [T, HEADS, DIM]``, `out` without
    gaps, ``sinks [HEADS]`` if `SINKS`.

    ``states [.., HEADS, DIM]`` and ``marks [.., HEADS, 2]`` hold the state of pieces that are to be
    joined: weighted sums, peak and total. ``arrivals [rows, key heads]`` is 0 between launches.
    `JOIN` pieces are joined at a time. `k_scale` and `v_scale` are what stored keys and values are
    multiples of, if `SCALED`: they multiply scores and results.
    """
    KV_HEADS: tl.constexpr = HEADS // GROUP
    FOLD: tl.constexpr = max(16, triton.next_power_of_2(GROUP))
    WIDTH: tl.constexpr = max(32 if SCALED else 16, triton.next_power_of_2(DIM))
    head = tl.program_id(0)
    piece = pieces + tl.program_id(1) * 8
    row = tl.load(piece)
    if row < 0:
        return
    token = tl.load(piece + 1).to(tl.int64)
    start = tl.load(piece + 2)
    stop = tl.load(piece + 3)
    low = tl.load(piece + 4)
    count = tl.load(piece + 5)
    base = tl.load(piece + 6)
    which = tl.load(piece + 7)

    lane = tl.arange(0, FOLD)
    dim = tl.arange(0, WIDTH)
    live = (lane < GROUP)[:, None] & (dim < DIM)[None, :]
    heads = head * GROUP + lane
    asked = tl.load(
        query + token * query_token + heads[:, None] * query_head + dim[None, :], live, 0.0
    ).to(DOT)
    result_scale = 1.0
    if SCALED:
        scale *= tl.load(k_scale)
        result_scale = tl.load(v_scale)
        pairs = kv.to(tl.pointer_type(tl.uint16), bitcast=True)
        pair = tl.arange(0, WIDTH // 2)
        odd = tl.zeros([FOLD, WIDTH // 2], tl.float32)
    acc = tl.zeros([FOLD, WIDTH // 2 if SCALED else WIDTH], tl.float32)
    total = tl.zeros([FOLD], tl.float32)
    peak = tl.full([FOLD], FLOOR, tl.float32)
    if SINKS:
        if which == 0:  # of a row in several pieces, the first has the sink
            peak, total = begin_with(sinks + heads, lane < GROUP)
    blocks = table + row.to(tl.int64) * table_row
    offset = head.to(tl.int64) * kv_head
    for at in range(start, stop, TILE):
        place = at + tl.arange(0, TILE)
        seen = (place < stop) & (place >= low)
        where = page_offsets(blocks, place, seen, offset, kv_block, kv_token, BLOCK)
        spots = kv + where[:, None] + dim[None, :]
        wanted = seen[:, None] & (dim < DIM)[None, :]
        key = widened(tl.load(spots, wanted, 0.0), DOT)
        if SCALED:
            # A product takes pairs of numbers of two tokens. Of 16-bit ones the hardware makes them
            # as it reads them; so two numbers of a token are read as one, and then told apart.
            wanted = seen[:, None] & (pair < DIM // 2)[None, :]
            found = tl.load(pairs + ((where + kv_side) // 2)[:, None] + pair[None, :], wanted, 0)
            even_value, odd_value = halves(found, DOT)
            weight, fade, total, peak = weigh(
                total, peak, asked, key, seen[None, :], scale, cap, True, SOFT_CAP
            )
            weight = weight.to(DOT)
            acc = tl.dot(weight, even_value, acc * fade[:, None], input_precision="ieee")
            odd = tl.dot(weight, odd_value, odd * fade[:, None], input_precision="ieee")
        else:
            value = widened(tl.load(spots + kv_side, wanted, 0.0), DOT)
            acc, total, peak = absorb(
                acc, total, peak, asked, key, value, seen[None, :], scale, cap, True, SOFT_CAP
            )
    if SCALED:
        acc = tl.interleave(acc, odd)

    if count == 1:
        result = acc * (result_scale / tl.where(total == 0.0, 1.0, total))[:, None]
        target = out + (token * HEADS + heads[:, None]) * DIM + dim[None, :]
        tl.store(target, result.to(out.dtype.element_ty), live)
    else:
        spot = (base + which) * HEADS + heads
        tl.store(states + spot.to(tl.int64)[:, None] * DIM + dim[None, :], acc, live)
        tl.store(marks + spot * 2, peak, lane < GROUP)
        tl.store(marks + spot * 2 + 1, total, lane < GROUP)
        tl.debug_barrier()  # all of it is stored before this program counts as arrived
        arrived = arrivals + row * KV_HEADS + head
        if tl.atomic_add(arrived, 1, sem="acq_rel", scope="gpu") == count - 1:
            join(
                out, states, marks, token, base, count, head, result_scale, HEADS, GROUP, DIM, JOIN
            )
            tl.store(arrived, 0)


@triton.jit
def join(
    out: tl.tensor,
    states: tl.tensor,
    marks: tl.tensor,
    token: tl.tensor,
    base: tl.tensor,
    count: tl.tensor,
    head: tl.tensor,
    result_scale: tl.tensor,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    JOIN: tl.constexpr,
) -> None:
    """Join the states of the `count` pieces of a row, from `base` on, and store the result
    times `result_scale`."""
    FOLD: tl.constexpr = triton.next_power_of_2(GROUP)
    WIDTH: tl.constexpr = triton.next_power_of_2(DIM)
    lane = tl.arange(0, FOLD)
    dim = tl.arange(0, WIDTH)
    heads = head * GROUP + lane
    live = (lane < GROUP)[:, None] & (dim < DIM)[None, :]
    acc = tl.zeros([FOLD, WIDTH], tl.float32)
    total = tl.zeros([FOLD], tl.float32)
    peak = tl.full([FOLD], FLOOR, tl.float32)
    for first in range(0, count, JOIN):
        piece = first + tl.arange(0, JOIN)
        held = (piece < count)[:, None] & (lane < GROUP)[None, :]
        spot = (base + piece)[:, None] * HEADS + heads[None, :]
        # Other programs wrote these: not through the first-level cache.
        peaks = tl.load(marks + spot * 2, held, FLOOR, cache_modifier=".cg")
        totals = tl.load(marks + spot * 2 + 1, held, 0.0, cache_modifier=".cg")
        part = tl.load(
            states + spot.to(tl.int64)[:, :, None] * DIM + dim[None, None, :],
            held[:, :, None] & (dim < DIM)[None, None, :],
            0.0,
            cache_modifier=".cg",
        )
        higher = tl.maximum(peak, tl.max(peaks, 0))
        fade = tl.exp2(peak - higher)
        weight = tl.exp2(peaks - higher[None, :])
        total = total * fade + tl.sum(totals * weight, 0)
        acc = acc * fade[:, None] + tl.sum(part * weight[:, :, None], 0)
        peak = higher
    result = acc * (result_scale / tl.where(total == 0.0, 1.0, total))[:, None]
    target = out + (token * HEADS + heads[:, None]) * DIM + dim[None, :]
    tl.store(target, result.to(out.dtype.element_ty), live)
