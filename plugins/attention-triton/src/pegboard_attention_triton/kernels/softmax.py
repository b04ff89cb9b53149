"""Softmax attention piece by piece: what the kernels for decode and for prefill share.

Scores are kept in units of log 2, so that weights are ``exp2`` of differences. A row's running
state is its largest score so far (`peak`), the sum of its weights (`total`) and the weighted sum of
values (`acc`), both relative to the peak (Milakov and Gimelshein, "Online normalizer calculation
for softmax", 2018).
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "FLOOR",
    "absorb",
    "absorb_pairs",
    "begin_with",
    "narrowed",
    "page_offsets",
    "whole",
    "widened",
]

FLOOR: tl.constexpr = tl.constexpr(-1.0e30)
"""The peak of a row that has seen nothing. It is finite, so that a hidden score of minus infinity
has weight 0 and not the difference of two infinities."""

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
ROOM: tl.constexpr = tl.constexpr(15.0)
"""A float16 weight may be up to two to this: the peak stays so far below the largest score. Weights
of less than 2^-14 have fewer digits, of less than 2^-24 none, and of those there may be many."""

INTERPRETED: tl.constexpr = tl.constexpr(triton.knobs.runtime.interpret)
_OF_PAIRS = """{
    .reg .b32 ordered;
    .reg .b16 first, second;
    prmt.b32 ordered, $1, 0, 0x3120;
    mov.b32 {first, second}, ordered;
    cvt.rn.f16x2.e4m3x2 $0, %s;
}"""
FIRST_OF_PAIRS: tl.constexpr = tl.constexpr(_OF_PAIRS % "first")
SECOND_OF_PAIRS: tl.constexpr = tl.constexpr(_OF_PAIRS % "second")


@triton.jit
def begin_with(sinks: tl.tensor, valid: tl.tensor) -> tl.tensor:
    """Peak and total of rows that have seen their sink alone, whose score is at ``sinks [m]``."""
    peak = tl.load(sinks, valid, 0.0).to(tl.float32) * LOG2E
    return peak, tl.full(peak.shape, 1.0, tl.float32)


@triton.jit
def narrowed(query: tl.tensor, scale: tl.tensor, DOT: tl.constexpr) -> tl.tensor:
    """``query [m, d]`` in the type of the products, and `scale` for products with it.

    float16 has the digits of bfloat16, but not its range: the largest number of a query comes to
    lie between 2^14 and 2^15 by a power of two, by which its scale is divided, ``[m, 1]``. Then
    only what is less than 2^-31 of the largest is rounded.
    """
    if tl.float16 == DOT and query.dtype == tl.bfloat16:
        wide = query.to(tl.float32)
        exponent = tl.max(tl.abs(wide), 1).to(tl.int32, bitcast=True) >> 23
        up = tl.minimum(268 - exponent, 253)  # like `exponent`, 127 more than that of the power
        power = (up << 23).to(tl.float32, bitcast=True)
        reciprocal = ((254 - up) << 23).to(tl.float32, bitcast=True)
        return (wide * power[:, None]).to(tl.float16), (scale * reciprocal)[:, None]
    else:
        return query.to(DOT), scale


@triton.jit
def widened(stored: tl.tensor, DOT: tl.constexpr) -> tl.tensor:
    """Keys or values in the type of the products. 8-bit floats become bfloat16 by way of float32:
    the hardware makes float16 of them, and has a quick way to bfloat16 from float32 alone."""
    if stored.dtype == tl.float8e4nv and tl.bfloat16 == DOT:
        return stored.to(tl.float32).to(DOT)
    else:
        return stored.to(DOT)


@triton.jit
def half(pairs: tl.tensor, SECOND: tl.constexpr, DOT: tl.constexpr) -> tl.tensor:
    """Of pairs of 8-bit floats, read as 16-bit numbers, the first or the second ones."""
    BY_HAND: tl.constexpr = tl.float16 == DOT and not INTERPRETED
    if not BY_HAND:
        code = pairs >> 8 if SECOND else pairs & 0xFF
        return widened(code.to(tl.uint8).to(tl.float8e4nv, bitcast=True), DOT)
    else:
        # Of two pairs, the four bytes are put in order at once; the compiler takes nine
        # instructions for what here are three.
        return tl.inline_asm_elementwise(
            SECOND_OF_PAIRS if SECOND else FIRST_OF_PAIRS, "=r,r", [pairs], tl.float16, True, 2
        )


@triton.jit
def page_offsets(
    blocks: tl.tensor,
    place: tl.tensor,
    valid: tl.tensor,
    base: tl.tensor,
    kv_block: tl.tensor,
    kv_token: tl.tensor,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Where the keys of tokens ``place [n]`` lie: the block table of the row begins at `blocks`,
    the storage of the head at offset `base`; int64 ``[n]``, in elements. Tokens that are not valid
    lie in the null block; `valid` may be None, for all."""
    if valid is None:
        block = tl.load(blocks + place // BLOCK).to(tl.int64)
    else:
        block = tl.load(blocks + place // BLOCK, mask=valid, other=0).to(tl.int64)
    return base + block * kv_block + (place % BLOCK) * kv_token


@triton.jit
def whole(spots: tl.tensor, dim: tl.tensor, DIM: tl.constexpr) -> tl.tensor:
    """What lies at ``spots [n, d]``, of which `DIM` columns exist, numbered `dim`; 0 elsewhere."""
    if dim.shape[0] == DIM:
        return tl.load(spots)
    else:
        nothing: tl.constexpr = 0.0 if spots.dtype.element_ty.is_floating() else 0
        return tl.load(spots, (dim < DIM)[None, :], nothing)


@triton.jit
def absorb(
    acc: tl.tensor,
    total: tl.tensor,
    peak: tl.tensor,
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    seen: tl.tensor,
    scale: tl.tensor,
    cap: tl.tensor,
    MASKED: tl.constexpr,
    SOFT_CAP: tl.constexpr,
) -> tl.tensor:
    """The state after ``n`` more tokens: ``query [m, d]``, ``key`` and ``value [n, d]``, ``seen [m,
    n]`` (only if `MASKED`); `scale` of `narrowed`."""
    weight, fade, total, peak = weigh(total, peak, query, key, seen, scale, cap, MASKED, SOFT_CAP)
    acc = acc * fade[:, None]
    acc = tl.dot(weight.to(value.dtype), value, acc, input_precision="ieee")
    return acc, total, peak


@triton.jit
def absorb_pairs(
    acc: tl.tensor,
    odd: tl.tensor,
    total: tl.tensor,
    peak: tl.tensor,
    query: tl.tensor,
    key: tl.tensor,
    pairs: tl.tensor,
    seen: tl.tensor,
    scale: tl.tensor,
    cap: tl.tensor,
    MASKED: tl.constexpr,
    SOFT_CAP: tl.constexpr,
) -> tl.tensor:
    """As `absorb`, with 8-bit values of which two at a time are read as one number, ``pairs [n, d /
    2]``: `acc` is of the first ones, `odd` of the second ones.

    A product takes pairs of numbers of two tokens. Of 16-bit ones the hardware makes them as it
    reads them; so two numbers of a token are read as one, and then told apart.
    """
    weight, fade, total, peak = weigh(total, peak, query, key, seen, scale, cap, MASKED, SOFT_CAP)
    weight = weight.to(query.dtype)
    first = half(pairs, False, query.dtype)
    acc = tl.dot(weight, first, acc * fade[:, None], input_precision="ieee")
    second = half(pairs, True, query.dtype)
    odd = tl.dot(weight, second, odd * fade[:, None], input_precision="ieee")
    return acc, odd, total, peak


@triton.jit
def weigh(
    total: tl.tensor,
    peak: tl.tensor,
    query: tl.tensor,
    key: tl.tensor,
    seen: tl.tensor,
    scale: tl.tensor,
    cap: tl.tensor,
    MASKED: tl.constexpr,
    SOFT_CAP: tl.constexpr,
) -> tl.tensor:
    """What `absorb` multiplies values and earlier sums with, and total and peak after it.

    Without a cap, `scale` turns products into scores in units of log 2. With one, a score is
    ``cap * tanh(x)``, computed as ``cap - 2 cap / (exp2(product * scale) + 1)``: `scale` includes
    2 log2(e) and `cap` log2(e).
    """
    score = tl.dot(query, tl.trans(key), input_precision="ieee")
    if SOFT_CAP:
        score = cap - 2.0 * cap / (tl.exp2(score * scale) + 1.0)
    else:
        score = score * scale
    if MASKED:
        score = tl.where(seen, score, float("-inf"))
    highest = tl.max(score, 1)
    if key.dtype == tl.float16:
        highest -= ROOM
    higher = tl.maximum(peak, highest)
    weight = tl.exp2(score - higher[:, None])
    fade = tl.exp2(peak - higher)
    return weight, fade, total * fade + tl.sum(weight, 1), higher
