"""Rows of which nothing is known before the step: attention over the step's own keys and values.

The tiles and the arithmetic of `prefill`. But all keys of such a row are query tokens of the step,
which lie in a matrix, token after token, and need not be gathered from pages: whole tiles of keys
are copied by the device's engine for tensors, described by the host once per call.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pegboard_attention_triton.kernels.softmax import FLOOR, absorb, begin_with

__all__ = ["fresh"]


@triton.jit(do_not_specialize_on_alignment=["tiles"])
def fresh(
    query: tl.tensor,
    out: tl.tensor,
    keys: tl.tensor_descriptor,
    values: tl.tensor_descriptor,
    key: tl.tensor,
    value: tl.tensor,
    sinks: tl.tensor,
    tiles: tl.tensor,
    query_token: tl.tensor,
    query_head: tl.tensor,
    key_token: tl.tensor,
    value_token: tl.tensor,
    scale: tl.tensor,
    cap: tl.tensor,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    SINKS: tl.constexpr,
) -> None:
    """One tile of a row whose first query token is its first token: ``query`` and ``out [T, HEADS,
    DIM]``, `out` without gaps; ``key`` and ``value [T, key heads, DIM]``, without gaps in a token;
    `keys` and `values` describe them as matrices ``[T, key heads * DIM]`` in blocks of ``[TILE,
    DIM]``. All have one dtype; `DIM` is a power of two. ``tiles [.., TILE_FIELDS]`` as in
    `prefill`.
    """
    tile = tiles + tl.program_id(0) * 5
    head = tl.load(tile + 1)
    token = tl.load(tile + 2)
    count = tl.load(tile + 3)
    position = tl.load(tile + 4)
    origin = token - position  # where the row begins

    pair = tl.arange(0, TILE_M)
    dim = tl.arange(0, DIM)
    nth = pair // GROUP
    live = nth < count
    tokens = (token + nth).to(tl.int64)
    heads = head * GROUP + pair % GROUP
    spots = query + tokens[:, None] * query_token + heads[:, None] * query_head + dim[None, :]
    asked = tl.load(spots, live[:, None], 0.0)
    where = position + nth
    stop = position + count
    right = (position + 1) // TILE * TILE  # every query sees every token before

    acc = tl.zeros([TILE_M, DIM], tl.float32)
    total = tl.zeros([TILE_M], tl.float32)
    peak = tl.full([TILE_M], FLOOR, tl.float32)
    if SINKS:
        peak, total = begin_with(sinks + heads, live)
    column = head * DIM
    for at in range(0, right, TILE):
        keys_here = keys.load([origin + at, column])
        values_here = values.load([origin + at, column])
        acc, total, peak = absorb(
            acc, total, peak, asked, keys_here, values_here, None, scale, cap, False, SOFT_CAP
        )
    for at in range(right, stop, TILE):
        place = at + tl.arange(0, TILE)
        # What is behind the row is another request's, and must not be met even with weight 0.
        valid = (place < stop)[:, None]
        seen = place[None, :] <= where[:, None]
        line = (origin + place).to(tl.int64)[:, None]
        part = column + dim[None, :]
        keys_here = tl.load(key + line * key_token + part, valid, 0.0)
        values_here = tl.load(value + line * value_token + part, valid, 0.0)
        acc, total, peak = absorb(
            acc, total, peak, asked, keys_here, values_here, seen, scale, cap, True, SOFT_CAP
        )

    result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    target = out + (tokens * HEADS + heads)[:, None] * DIM + dim[None, :]
    tl.store(target, result.to(out.dtype.element_ty), live[:, None])
