"""Products of some dozens of rows in which weights and activations are codes.

Bound by reading the weights like those of a few rows: 1.56 ms for the 32 layers of Llama-3.1-8B.
Codes go to the matrix units as they are, and scales are multiplied with the sums, so that no second
kernel is needed; expected are 75 % of the bandwidth, 2.1 ms.
"""

# ruff: noqa: D103
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, check-untyped-defs=False
from __future__ import annotations

import triton
import triton.language as tl

from pegboard_quant_fp8.kernels.parts import arrive, gather

__all__ = ["coded_rows", "scale_results"]


@triton.jit(do_not_specialize=["rows"])
def coded_rows(
    codes,  # e4m3 [rows, inputs]
    code_scales,  # float32 [rows]
    weight,  # e4m3 [outputs, inputs]
    scale,  # float32 [outputs]
    out,  # [rows, outputs]
    partial,  # float32 [SPLIT, outputs, ROWS], used with SPLIT > 1
    arrivals,  # int32 [outputs / TILE_N], zero before and after
    rows,
    outputs,
    inputs,
    ROWS: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    SPLIT: tl.constexpr,  # programs that share the inputs of one tile
    EVEN: tl.constexpr,  # inputs is a multiple of TILE_K
    STAGES: tl.constexpr,
):
    tile, part = tl.program_id(0), tl.program_id(1)
    n = tile * TILE_N + tl.arange(0, TILE_N)
    m = tl.arange(0, ROWS)
    # What lies beyond the edges is multiplied too, from the last row, and not stored.
    w_at = weight + tl.minimum(n, outputs - 1).to(tl.int64)[:, None] * inputs
    x_at = codes + tl.minimum(m, rows - 1)[None, :] * inputs
    share = tl.cdiv(tl.cdiv(inputs, TILE_K), SPLIT)
    first = part * share * TILE_K
    last = tl.minimum(first + share * TILE_K, inputs)
    lane = tl.arange(0, TILE_K)
    total = tl.zeros((TILE_N, ROWS), tl.float32)
    for start in tl.range(first, last, TILE_K, num_stages=STAGES):
        k = start + lane
        if EVEN:
            w = tl.load(w_at + k[None, :])
            x = tl.load(x_at + k[:, None])
        else:
            w = tl.load(w_at + k[None, :], mask=k[None, :] < inputs, other=0.0)
            x = tl.load(x_at + k[:, None], mask=k[:, None] < inputs, other=0.0)
        total = tl.dot(w, x, total)
    kept = n < outputs
    left = 0
    place = partial + n[:, None] * ROWS + m[None, :]
    spread = kept[:, None] & (m < ROWS)[None, :]
    if SPLIT > 1:
        step = outputs * ROWS
        left = arrive(total, place + part * step, spread, arrivals + tile, SPLIT)
    if left == 0:
        if SPLIT > 1:
            total = gather(total, place, outputs * ROWS, spread, arrivals + tile, SPLIT)
        total *= tl.load(scale + n, mask=kept, other=0.0)[:, None]
        total *= tl.load(code_scales + m, mask=m < rows, other=0.0)[None, :]
        at = out + m[None, :] * outputs + n[:, None]
        inside = kept[:, None] & (m < rows)[None, :]
        tl.store(at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def scale_results(
    sums,  # [rows, outputs], products of codes
    code_scales,  # float32 [rows]
    scale,  # float32 [outputs]
    out,  # [rows, outputs], may be `sums`
    outputs,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = n < outputs
    value = tl.load(sums + row * outputs + n, mask=inside, other=0.0).to(tl.float32)
    value *= tl.load(scale + n, mask=inside, other=0.0) * tl.load(code_scales + row)
    tl.store(out + row * outputs + n, value.to(out.dtype.element_ty), mask=inside)
