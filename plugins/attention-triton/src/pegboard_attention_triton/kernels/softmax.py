"""Softmax attention piece by piece: what the kernels for decode and for prefill share.

Scores are kept in units of log 2, so that weights are ``exp2`` of differences. A row's running
state is its largest score so far (`peak`), the sum of its weights (`total`) and the weighted sum of
values (`acc`), both relative to the peak (Milakov and Gimelshein, "Online normalizer calculation
for softmax", 2018).
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["FLOOR", "absorb", "begin_with", "halves", "page_offsets", "weigh", "widened"]

FLOOR: tl.constexpr = tl.constexpr(-1.0e30)
"""The peak of a row that has seen nothing. It is finite, so that a hidden score of minus infinity
has weight 0 and not the difference of two infinities."""


LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def begin_with(sinks: tl.tensor, valid: tl.tensor) -> tl.tensor:
    """Peak and total of rows that have seen their sink alone, whose score is at ``sinks [m]``."""
    peak = tl.load(sinks, valid, 0.0).to(tl.float32) * LOG2E
    return peak, tl.full(peak.shape, 1.0, tl.float32)


@triton.jit
def widened(stored: tl.tensor, DOT: tl.constexpr) -> tl.tensor:
    """Keys or values in the type of the products. 8-bit floats become bfloat16 by way of float32:
    the hardware makes float16 of them, and from there to bfloat16 has but an instruction of a
    fraction of the others' rate."""
    if stored.dtype == tl.float8e4nv:
        if tl.float16 == DOT:
            return stored.to(tl.float16)
        else:
            return stored.to(tl.float32).to(DOT)
    else:
        return stored.to(DOT)


@triton.jit
def halves(pairs: tl.tensor, DOT: tl.constexpr) -> tl.tensor:
    """Of pairs of 8-bit floats, read as 16-bit numbers, the first and the second ones."""
    first = (pairs & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True)
    second = (pairs >> 8).to(tl.uint8).to(tl.float8e4nv, bitcast=True)
    return widened(first, DOT), widened(second, DOT)


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
    n]`` (only if `MASKED`)."""
    weight, fade, total, peak = weigh(total, peak, query, key, seen, scale, cap, MASKED, SOFT_CAP)
    acc = acc * fade[:, None]
    acc = tl.dot(weight.to(value.dtype), value, acc, input_precision="ieee")
    return acc, total, peak


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
    higher = tl.maximum(peak, tl.max(score, 1))
    weight = tl.exp2(score - higher[:, None])
    fade = tl.exp2(peak - higher)
    return weight, fade, total * fade + tl.sum(weight, 1), higher
