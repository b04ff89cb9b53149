"""Products of a few rows with e4m3 weights; activations are not rounded.

Such a product is bound by reading the weights: ``outputs * inputs`` bytes at 4.47 TB/s, so 5.6 µs
for 4096 × 6144, 3.8 µs for 4096 × 4096, 26.3 µs for 4096 × 28672, 13.1 µs for 14336 × 4096, or
1.56 ms for the 32 layers of Llama-3.1-8B. Expected are 75 to 90 % of that bandwidth: the codes are
widened in registers, four instructions for two weights, which is a third of what the processors can
issue meanwhile.
"""

# ruff: noqa: C901, D103, PLR0912
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, check-untyped-defs=False
from __future__ import annotations

import triton
import triton.language as tl

from pegboard_quant_fp8.kernels.parts import arrive, gather

__all__ = ["few_rows", "one_row"]


@triton.jit
def _widened(codes, DOT: tl.constexpr):
    """Codes in another type, exactly. By way of float32: from float16, which the hardware makes of
    codes, to bfloat16 there is but an instruction of a quarter of the others' rate or less."""
    if tl.float16 == DOT:
        return codes.to(tl.float16)
    return codes.to(tl.float32).to(DOT)


@triton.jit
def one_row(
    x,  # [inputs]
    weight,  # e4m3 [outputs, inputs]
    scale,  # float32 [outputs]
    out,  # [outputs]
    outputs,
    inputs,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    EVEN: tl.constexpr,  # inputs is a multiple of TILE_K
):
    n = tl.program_id(0) * TILE_N + tl.arange(0, TILE_N)
    lane = tl.arange(0, TILE_K)
    row = tl.minimum(n, outputs - 1).to(tl.int64) * inputs
    total = tl.zeros((TILE_N, TILE_K), tl.float32)
    for start in range(0, inputs, TILE_K):
        k = start + lane
        if EVEN:
            codes = tl.load(weight + row[:, None] + k[None, :], eviction_policy="evict_first")
            values = tl.load(x + k)
        else:
            inside = k < inputs
            codes = tl.load(weight + row[:, None] + k[None, :], mask=inside[None, :], other=0.0)
            values = tl.load(x + k, mask=inside, other=0.0)
        total += codes.to(tl.float32) * values.to(tl.float32)[None, :]
    kept = n < outputs
    result = tl.sum(total, 1) * tl.load(scale + n, mask=kept, other=0.0)
    tl.store(out + n, result.to(out.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["rows"])
def few_rows(
    x,  # [rows, inputs], x_row elements from row to row
    weight,  # e4m3 [outputs, inputs]
    scale,  # float32 [outputs], or [blocks, groups] with a scale per GROUP inputs
    block_of_row,  # int32 [outputs], used with GROUP
    out,  # [rows, outputs]
    partial,  # float32 [SPLIT, outputs, ROWS], used with SPLIT > 1
    arrivals,  # int32 [outputs / TILE_N], zero before and after
    rows,
    outputs,
    inputs,
    x_row,
    groups,
    ROWS: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    SPLIT: tl.constexpr,  # programs that share the inputs of one tile
    GROUP: tl.constexpr,  # 0: one scale per output
    EVEN: tl.constexpr,
    WIDE: tl.constexpr,  # the weight is the first operand of the product
    DOT: tl.constexpr,
):
    tile, part = tl.program_id(0), tl.program_id(1)
    n = tile * TILE_N + tl.arange(0, TILE_N)
    m = tl.arange(0, ROWS)
    row = tl.minimum(n, outputs - 1).to(tl.int64) * inputs
    if GROUP:
        scale_at = tl.load(block_of_row + tl.minimum(n, outputs - 1)) * groups
    share = tl.cdiv(tl.cdiv(inputs, TILE_K), SPLIT)
    first = part * share * TILE_K
    last = tl.minimum(first + share * TILE_K, inputs)
    lane = tl.arange(0, TILE_K)
    if WIDE:
        total = tl.zeros((TILE_N, ROWS), tl.float32)
    else:
        total = tl.zeros((ROWS, TILE_N), tl.float32)
    for start in range(first, last, TILE_K):
        k = start + lane
        x_at = x + m[:, None] * x_row + k[None, :]
        if EVEN:
            values = tl.load(x_at, mask=m[:, None] < rows, other=0.0).to(DOT)
        else:
            inside = (m[:, None] < rows) & (k[None, :] < inputs)
            values = tl.load(x_at, mask=inside, other=0.0).to(DOT)
        if WIDE:
            w_at = weight + row[:, None] + k[None, :]
            if EVEN:
                codes = tl.load(w_at, eviction_policy="evict_first")
            else:
                codes = tl.load(w_at, mask=k[None, :] < inputs, other=0.0)
            product = tl.dot(_widened(codes, DOT), tl.trans(values))
            if GROUP:
                product *= tl.load(scale + scale_at + start // GROUP)[:, None]
        else:
            w_at = weight + row[None, :] + k[:, None]
            if EVEN:
                codes = tl.load(w_at, eviction_policy="evict_first")
            else:
                codes = tl.load(w_at, mask=k[:, None] < inputs, other=0.0)
            product = tl.dot(values, _widened(codes, DOT))
            if GROUP:
                product *= tl.load(scale + scale_at + start // GROUP)[None, :]
        total += product
    kept = n < outputs
    if WIDE:
        place = n[:, None] * ROWS + m[None, :]
        out_at = out + m[None, :] * outputs + n[:, None]
        inside = kept[:, None] & (m[None, :] < rows)
        spread = kept[:, None] & (m[None, :] < ROWS)
    else:
        place = n[None, :] * ROWS + m[:, None]
        out_at = out + m[:, None] * outputs + n[None, :]
        inside = kept[None, :] & (m[:, None] < rows)
        spread = kept[None, :] & (m[:, None] < ROWS)
    left = 0
    step = outputs * ROWS
    if SPLIT > 1:
        left = arrive(total, partial + part * step + place, spread, arrivals + tile, SPLIT)
    if left == 0:  # the last to arrive adds the parts, in their order, whoever it is
        if SPLIT > 1:
            total = gather(total, partial + place, step, spread, arrivals + tile, SPLIT)
        if not GROUP:
            factor = tl.load(scale + n, mask=kept, other=0.0)
            if WIDE:
                total *= factor[:, None]
            else:
                total *= factor[None, :]
        tl.store(out_at, total.to(out.dtype.element_ty), mask=inside)
