"""Cutting the rows of a decode step into pieces, on the device.

Short and long rows keep a device equally busy if all pieces are about equally long. Of the
beginning that all rows of a step share, pieces are cut not from each row but once for each *band*
of rows, as many as fill the lanes of a product with their query heads: what is read once for a band
is not read once for each of its rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["BAND", "PIECE_FIELDS", "cut_rows"]

PIECE_FIELDS = 8
"""int32 numbers per piece: row or -1, query token, first place, end of places, first token that the
query sees, pieces of the row, where their states begin, which of them it is.

Of a piece of a band: `BAND`, the line of its first row, first place, end of places, rows of the
band, 0, 0, which of the band's pieces it is. Lines of rows with a shared beginning stand behind all
pieces: row, query token, 0, 0, 0, pieces of the row with those of its band, where their states
begin, 0. The pieces of its band are the first of a row."""

BAND: tl.constexpr = tl.constexpr(-2)
"""In place of the row: the piece belongs to a band."""


@triton.jit(do_not_specialize=["rows", "room"], do_not_specialize_on_alignment=["prefix"])
def cut_rows(
    kv_lens: tl.tensor,
    query_starts: tl.tensor,
    prefix: tl.tensor,
    pieces: tl.tensor,
    rows: tl.tensor,
    room: tl.tensor,
    KIND: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    BAND_ROWS: tl.constexpr,
    LEAST_TOKENS: tl.constexpr,
    LEAST_ROWS: tl.constexpr,
) -> None:
    """Fill ``pieces [room, PIECE_FIELDS]`` for the rows that have one query token.

    A piece has about the sum of all lengths over `PARTS` tokens, a multiple of `TILE`; those of one
    row are equally long, the last one may be shorter. One program.

    With `BAND_ROWS`, rows of a band, ``prefix [1]`` holds the tokens that all rows share, and
    `pieces` has a line for each row behind the first `room`. Bands are made if that is at least
    `LEAST_TOKENS`, and `LEAST_ROWS` rows have one query token; they take whole tiles.
    """
    row = tl.arange(0, ROWS)
    zeros = tl.zeros([ROWS], tl.int32)
    length = tl.load(kv_lens + row, mask=row < rows, other=0)
    token = tl.load(query_starts + row, mask=row < rows, other=0)
    after = tl.load(query_starts + row + 1, mask=row < rows, other=0)
    chosen = (row < rows) & (after - token == 1)
    if KIND == "sliding":
        low = tl.maximum(length - SPAN, 0)
    elif KIND == "chunked":
        low = tl.maximum(length - 1, 0) // SPAN * SPAN
    else:
        low = zeros
    start = low // BLOCK * BLOCK
    if BAND_ROWS:
        common = tl.load(prefix) // TILE * TILE
        sharing = chosen & (length > common)
        sharers = tl.sum(sharing.to(tl.int32), 0)
        worthwhile = (common >= LEAST_TOKENS) & (sharers >= LEAST_ROWS)
        common = tl.where(worthwhile, common, 0)
        bands = tl.where(worthwhile, tl.cdiv(sharers, BAND_ROWS), 0)
        sharing = sharing & (zeros < bands)
        start = tl.where(sharing, common, start)
    places = tl.where(chosen, length - start, 0)
    work = tl.sum(places.to(tl.int64), 0)
    if BAND_ROWS:
        work += bands.to(tl.int64) * common
    share = tl.cdiv(work, PARTS * TILE).to(tl.int32)
    share = tl.maximum(share, 1) * TILE
    # The nearest number of pieces, all of one length: a short rest would cost a piece and a join.
    count = tl.maximum((places + share // 2) // share, 1)
    step = tl.maximum(tl.cdiv(tl.cdiv(places, count), TILE), 1) * TILE
    count = tl.where(chosen, tl.maximum(tl.cdiv(places, step), 1), 0)
    first = tl.cumsum(count, 0) - count
    total = tl.sum(count, 0)
    before = zeros
    if BAND_ROWS:
        parts = tl.maximum((common + share // 2) // share, 1)
        stride = tl.maximum(tl.cdiv(tl.cdiv(common, parts), TILE), 1) * TILE
        parts = tl.cdiv(common, stride)
        before = tl.where(sharing, parts, 0)
        first += bands * parts  # those of bands take longest, and come first
        total += bands * parts
    every = before + count
    joined = tl.where(every > 1, every, 0)
    states = tl.cumsum(joined, 0) - joined
    if BAND_ROWS:
        rank = tl.cumsum(sharing.to(tl.int32), 0) - 1
        line = pieces + (room + rank) * 8
        tl.store(line, row, sharing)
        tl.store(line + 1, token, sharing)
        tl.store(line + 5, every, sharing)
        tl.store(line + 6, states, sharing)
        for which in range(0, parts):
            here = row < bands  # a lane stands for a band here
            at = pieces + (row * parts + which) * 8
            begin = which * stride
            tl.store(at, zeros + BAND, here)
            tl.store(at + 1, row * BAND_ROWS, here)
            tl.store(at + 2, zeros + begin, here)
            tl.store(at + 3, zeros + tl.minimum(begin + stride, common), here)
            tl.store(at + 4, tl.minimum(sharers - row * BAND_ROWS, BAND_ROWS), here)
            tl.store(at + 7, zeros + which, here)
    for which in range(0, tl.max(count, 0)):
        here = which < count
        at = pieces + (first + which) * 8
        begin = start + which * step
        tl.store(at, row, here)
        tl.store(at + 1, token, here)
        tl.store(at + 2, begin, here)
        tl.store(at + 3, tl.minimum(begin + step, length), here)
        tl.store(at + 4, low, here)
        tl.store(at + 5, every, here)
        tl.store(at + 6, states, here)
        tl.store(at + 7, before + which, here)
    for unused in range(total, room, ROWS):
        place = unused + row
        tl.store(pieces + place * 8, tl.full([ROWS], -1, tl.int32), place < room)
