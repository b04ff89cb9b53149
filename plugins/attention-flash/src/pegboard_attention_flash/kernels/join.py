"""Joining two results of attention over different keys.

With the log-sum-exp ``l`` of the scores beside each result ``o``, the whole is
``(o1 exp(l1) + o2 exp(l2)) / (exp(l1) + exp(l2))`` (Milakov and Gimelshein, "Online normalizer
calculation for softmax", 2018). Computed in float32; bound by memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["join"]


@triton.jit(
    do_not_specialize=["count", "left_lse_head", "right_lse_head", "out_lse_head"],
    do_not_specialize_on_alignment=["left_lse", "right_lse", "out_lse"],
)
def join(
    left: tl.tensor,
    left_lse: tl.tensor,
    right: tl.tensor,
    right_lse: tl.tensor,
    out: tl.tensor,
    out_lse: tl.tensor,
    count: tl.tensor,
    left_token: tl.tensor,
    left_head: tl.tensor,
    left_lse_head: tl.tensor,
    right_token: tl.tensor,
    right_head: tl.tensor,
    right_lse_head: tl.tensor,
    out_token: tl.tensor,
    out_head: tl.tensor,
    out_lse_head: tl.tensor,
    DIM: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """``left``, ``right`` and ``out [count, heads, DIM]``, their ``lse [heads, count]`` in natural
    logarithms. `out` may be `left`. Programs: tiles of tokens, heads."""
    dim = tl.arange(0, triton.next_power_of_2(DIM))
    token = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    real = token < count
    wanted = real[:, None] & (dim < DIM)[None, :]

    one = tl.load(left_lse + head * left_lse_head + token, real, 0.0)
    two = tl.load(right_lse + head * right_lse_head + token, real, 0.0)
    most = tl.maximum(one, two)
    one_part = tl.exp(one - most)
    two_part = tl.exp(two - most)
    total = one_part + two_part

    at = token[:, None]
    a = tl.load(left + at * left_token + head * left_head + dim[None, :], wanted, 0.0)
    b = tl.load(right + at * right_token + head * right_head + dim[None, :], wanted, 0.0)
    joined = a.to(tl.float32) * (one_part / total)[:, None]
    joined += b.to(tl.float32) * (two_part / total)[:, None]
    target = out + at * out_token + head * out_head + dim[None, :]
    tl.store(target, joined.to(out.dtype.element_ty), wanted)
    tl.store(out_lse + head * out_lse_head + token, most + tl.log(total), real)
