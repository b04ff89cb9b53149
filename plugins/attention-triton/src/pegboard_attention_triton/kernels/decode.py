"""Rows with one query token: split-KV decoding.

A step's rows are cut into *pieces* of about equal length, see `cut`; that happens on the device,
once per step, so that a recorded step follows the lengths of its replay. `decode` runs one program
per piece and key head, in which the query heads of that key head share every key that is read. Of a
row in several pieces, each piece stores its state and the one that ends last joins them, always in
the order of the tokens, so that the result does not depend on which one that was.

A piece of the beginning that all rows share is read once for a *band* of rows. It stores a state
for each of them, to be joined with those of the row's own pieces. The same launch does both, so
that a step whose rows share nothing is spared one; the lanes of a band are bounded by the registers
of a program that is made for single rows.

Bytes bound it: a step reads each key and value once, 2 * kv heads * dim * element bytes per token.
Of 8-bit floats that is half of what bfloat16 takes. In registers they become float16, two with one
instruction, whatever the type of the queries: to bfloat16 the way would be four times as long.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pegboard_attention_triton.kernels.cut import BAND
from pegboard_attention_triton.kernels.softmax import (
    FLOOR,
    absorb,
    absorb_pairs,
    begin_with,
    narrowed,
    page_offsets,
    whole,
    widened,
)

__all__ = ["PAIRED_GROUP", "decode"]

PAIRED_GROUP: tl.constexpr = tl.constexpr(32)
"""Query heads of one key head up to which 8-bit values are taken in pairs, and bfloat16 queries
become float16. From 64 lanes on products of four warps are other instructions, which are given
addresses; and in such programs ptxas 12.8 computed those of the pairs from a register that nothing
had written. With more query heads keys and values are widened as they are; nor have bands of 8-bit
floats more lanes."""


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
    LANES: tl.constexpr,
    DOT: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    SINKS: tl.constexpr,
    SCALED: tl.constexpr,
) -> None:
    """One piece and one key head: ``query`` and ``out [T, HEADS, DIM]``, `out` without
    gaps, ``sinks [HEADS]`` if `SINKS`.

    ``states [.., HEADS, DIM]`` and ``marks [.., HEADS, 2]`` hold the state of pieces that are to be
    joined: weighted sums, peak and total. ``arrivals [rows, key heads]`` is 0 between launches.
    `JOIN` pieces are joined at a time. `LANES` are pairs of a row and a query head that a band has
    room for; 0 if there are no bands.
    `k_scale` and `v_scale` are what stored keys and values are
    multiples of, if `SCALED`: they multiply scores and results.
    """
    KV_HEADS: tl.constexpr = HEADS // GROUP
    FOLD: tl.constexpr = max(16, triton.next_power_of_2(GROUP))
    WIDTH: tl.constexpr = max(32 if SCALED else 16, triton.next_power_of_2(DIM))
    PAIRED: tl.constexpr = SCALED and GROUP <= PAIRED_GROUP
    head = tl.program_id(0)
    piece = pieces + tl.program_id(1) * 8
    row = tl.load(piece)
    if LANES:
        if row == BAND:
            serve_band(
                query, out, kv, sinks, table, pieces, piece, states, marks, arrivals, head, k_scale,
                v_scale, query_token, query_head, kv_side, kv_block, kv_head, kv_token, table_row,
                scale, cap, HEADS, GROUP, DIM, BLOCK, TILE, JOIN, LANES, DOT, SOFT_CAP, SINKS,
                SCALED,
            )  # fmt: skip
            return
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
    )
    result_scale = 1.0
    if SCALED:
        scale *= tl.load(k_scale)
        result_scale = tl.load(v_scale)
        pairs = kv.to(tl.pointer_type(tl.uint16), bitcast=True)
        pair = tl.arange(0, WIDTH // 2)
        odd = tl.zeros([FOLD, WIDTH // 2], tl.float32)
    asked, scale = narrowed(asked, scale, DOT)
    acc = tl.zeros([FOLD, WIDTH // 2 if PAIRED else WIDTH], tl.float32)
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
        if PAIRED:
            wanted = seen[:, None] & (pair < DIM // 2)[None, :]
            found = tl.load(pairs + ((where + kv_side) // 2)[:, None] + pair[None, :], wanted, 0)
            acc, odd, total, peak = absorb_pairs(
                acc, odd, total, peak, asked, key, found, seen[None, :], scale, cap, True, SOFT_CAP
            )
        else:
            value = widened(tl.load(spots + kv_side, wanted, 0.0), DOT)
            acc, total, peak = absorb(
                acc, total, peak, asked, key, value, seen[None, :], scale, cap, True, SOFT_CAP
            )
    if PAIRED:
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
def serve_band(
    query: tl.tensor,
    out: tl.tensor,
    kv: tl.tensor,
    sinks: tl.tensor,
    table: tl.tensor,
    pieces: tl.tensor,
    piece: tl.tensor,
    states: tl.tensor,
    marks: tl.tensor,
    arrivals: tl.tensor,
    head: tl.tensor,
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
    LANES: tl.constexpr,
    DOT: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    SINKS: tl.constexpr,
    SCALED: tl.constexpr,
) -> None:
    """The piece of a band and one key head: a state for each row, and the join of those rows whose
    last piece this is."""
    KV_HEADS: tl.constexpr = HEADS // GROUP
    WIDTH: tl.constexpr = max(32 if SCALED else 16, triton.next_power_of_2(DIM))
    lines = pieces + (tl.num_programs(1) + tl.load(piece + 1)) * 8
    start = tl.load(piece + 2)
    stop = tl.load(piece + 3)
    rows = tl.load(piece + 4)
    which = tl.load(piece + 7)

    lane = tl.arange(0, LANES)
    dim = tl.arange(0, WIDTH)
    held = lane // GROUP < rows
    line = lines + lane // GROUP * 8
    row = tl.load(line, held, 0)
    token = tl.load(line + 1, held, 0).to(tl.int64)
    live = held[:, None] & (dim < DIM)[None, :]
    heads = head * GROUP + lane % GROUP
    asked = tl.load(
        query + token[:, None] * query_token + heads[:, None] * query_head + dim[None, :], live, 0.0
    )
    result_scale = 1.0
    if SCALED:
        scale *= tl.load(k_scale)
        result_scale = tl.load(v_scale)
        pairs = kv.to(tl.pointer_type(tl.uint16), bitcast=True)
        pair = tl.arange(0, WIDTH // 2)
        odd = tl.zeros([LANES, WIDTH // 2], tl.float32)
    asked, scale = narrowed(asked, scale, DOT)
    acc = tl.zeros([LANES, WIDTH // 2 if SCALED else WIDTH], tl.float32)
    total = tl.zeros([LANES], tl.float32)
    peak = tl.full([LANES], FLOOR, tl.float32)
    if SINKS:
        if which == 0:
            peak, total = begin_with(sinks + heads, held)
    blocks = table + tl.load(lines).to(tl.int64) * table_row
    offset = head.to(tl.int64) * kv_head
    for at in range(start, stop, TILE):  # whole tiles, which every row sees
        place = at + tl.arange(0, TILE)
        where = page_offsets(blocks, place, None, offset, kv_block, kv_token, BLOCK)
        spots = kv + where[:, None] + dim[None, :]
        key = whole(spots, dim, DIM).to(DOT)
        if SCALED:
            twos = pairs + ((where + kv_side) // 2)[:, None] + pair[None, :]
            found = whole(twos, pair, DIM // 2)
            acc, odd, total, peak = absorb_pairs(
                acc, odd, total, peak, asked, key, found, None, scale, cap, False, SOFT_CAP
            )
        else:
            value = whole(spots + kv_side, dim, DIM).to(DOT)
            acc, total, peak = absorb(
                acc, total, peak, asked, key, value, None, scale, cap, False, SOFT_CAP
            )
    if SCALED:
        acc = tl.interleave(acc, odd)

    spot = (tl.load(line + 6, held, 0) + which) * HEADS + heads
    tl.store(states + spot.to(tl.int64)[:, None] * DIM + dim[None, :], acc, live)
    tl.store(marks + spot * 2, peak, held)
    tl.store(marks + spot * 2 + 1, total, held)
    tl.debug_barrier()  # all of it is stored before this program counts as arrived
    chosen = held & (lane % GROUP == 0)  # one lane of each row
    counters = arrivals + row * KV_HEADS + head
    arrived = tl.atomic_add(counters, 1, chosen, sem="acq_rel", scope="gpu")
    for nth in range(0, rows):
        others = tl.sum(tl.where(lane == nth * GROUP, arrived, 0), 0)
        own = lines + nth * 8
        count = tl.load(own + 5)
        if others == count - 1:
            token_of = tl.load(own + 1).to(tl.int64)
            base = tl.load(own + 6)
            join(
                out, states, marks, token_of, base, count, head, result_scale, HEADS, GROUP, DIM,
                JOIN,
            )  # fmt: skip
            tl.store(arrivals + tl.load(own) * KV_HEADS + head, 0)


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
