"""Products of few rows with a weight that comes from device memory.

Floor: the bytes of the weight over the read bandwidth: 4096 x 6144 in bfloat16 are 50 MB, 11.3 µs
at 4.47 TB/s, to which a launch adds 1 to 2 µs. One row is multiplied by element, since the matrix
units would be idle for fifteen sixteenths; more rows go through the matrix units, padded to 16 or
more. From 17 rows on the copy engine brings both operands, so that threads compute no addresses
and hold none: with 32 rows the products of a layer of the 8B take 117 µs where the library takes
126 (floor 99), with 64 rows 122 and 127. With more the library is as fast, two wide products
excepted. All sums are in float32 and in a fixed order.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, check-untyped-defs=False
from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from pegboard_platform_cuda.kernels.described import describable, described_product
from pegboard_platform_cuda.kernels.overlap import fetch, overlap, wait
from pegboard_platform_cuda.tiles import TABLE_ROWS, Tile, tile_for

__all__ = ["linear", "product"]

_NARROW = (torch.bfloat16, torch.float16)


@triton.jit
def _vector_kernel(
    x, weight, out, weight_stride, N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    there = column < N
    rows = weight + column.to(tl.int64)[:, None] * weight_stride
    if EARLY:
        near = weight + tl.minimum(column, N - 1).to(tl.int64)[:, None] * weight_stride
        line = tl.arange(0, (BK + 63) // 64) * 64
        fetch(near + tl.minimum(line, K - 1)[None, :])
        wait()
    total = tl.zeros([BN, BK], tl.float32)
    for start in tl.range(0, K, BK, num_stages=STAGES):
        feature = start + tl.arange(0, BK)
        if K % BK:
            inside = feature < K
            mask = there[:, None] & inside[None, :]
            part = tl.load(rows + feature[None, :], mask=mask, other=0.0)
            given = tl.load(x + feature, mask=inside, other=0.0)
        else:
            part = tl.load(rows + feature[None, :], mask=there[:, None], other=0.0)
            given = tl.load(x + feature)
        total += part.to(tl.float32) * given.to(tl.float32)[None, :]
    tl.store(out + column, tl.sum(total, 1).to(out.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["rows"])
def _matrix_kernel(
    x, weight, out, rows, x_stride, weight_stride,
    N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    SPLITS: tl.constexpr, STAGES: tl.constexpr, SWAP: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(1)
    row = tl.arange(0, BM)
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    steps: tl.constexpr = ((K + BK - 1) // BK + SPLITS - 1) // SPLITS
    there, have = column < N, row < rows
    from_x = x + row[:, None] * x_stride
    from_weight = weight + column.to(tl.int64)[:, None] * weight_stride
    if EARLY:
        near = weight + tl.minimum(column, N - 1).to(tl.int64)[:, None] * weight_stride
        line = split * steps * BK + tl.arange(0, (BK + 63) // 64) * 64
        for ahead in tl.static_range(STAGES):
            fetch(near + tl.minimum(ahead * BK + line, K - 1)[None, :])
        wait()
    total = tl.zeros([BN, BM] if SWAP else [BM, BN], tl.float32)
    for step in tl.range(0, steps, num_stages=STAGES):
        feature = (split * steps + step) * BK + tl.arange(0, BK)
        x_mask, weight_mask = have[:, None], there[:, None]
        if K % (BK * SPLITS):
            inside = feature < K
            x_mask, weight_mask = x_mask & inside[None, :], weight_mask & inside[None, :]
        given = tl.load(from_x + feature[None, :], mask=x_mask, other=0.0)
        part = tl.load(from_weight + feature[None, :], mask=weight_mask, other=0.0)
        if SWAP:
            total = tl.dot(part, tl.trans(given), total)
        else:
            total = tl.dot(given, tl.trans(part), total)
    if SWAP:
        total = tl.trans(total)
    place = out + (split * rows + row)[:, None] * N + column[None, :]
    tl.store(place, total.to(out.dtype.element_ty), mask=have[:, None] & there[None, :])


@triton.jit(do_not_specialize=["size"])
def _add_kernel(parts, out, size, SPLITS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = place < size
    if EARLY:
        wait()
    total = tl.zeros([BLOCK], tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts + split * size + place, mask=mask, other=0.0)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=mask)


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`pegboard.nn.ops.linear`: own kernels for few rows of 16-bit numbers, and for more where the
    table says so; else the library."""
    rows = x.shape[0]
    if not 0 < rows <= TABLE_ROWS or x.dtype != weight.dtype or weight.dtype not in _NARROW:
        return F.linear(x.to(weight.dtype), weight).to(x.dtype)
    return product(x, weight, tile_for(weight.shape[1], weight.shape[0], rows))


def product(x: torch.Tensor, weight: torch.Tensor, tile: Tile) -> torch.Tensor:
    """``x @ weight.T`` with up to `TABLE_ROWS` rows, cut as `tile` says; both in the same 16-bit
    type."""
    if tile.kind == "described" and describable(x, weight):
        return described_product(x, weight, tile)
    if tile.kind in ("library", "described") or x.stride(1) != 1 or weight.stride(1) != 1:
        return F.linear(x, weight)
    rows, inputs = x.shape
    outputs = weight.shape[0]
    out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    programs = triton.cdiv(outputs, tile.outputs)
    if tile.kind == "vector":
        _vector_kernel[(programs,)](
            x,
            weight,
            out,
            weight.stride(0),
            N=outputs,
            K=inputs,
            BN=tile.outputs,
            BK=triton.next_power_of_2(tile.depth),
            STAGES=tile.stages,
            num_warps=tile.warps,
            **overlap(rows),
        )
        return out
    target = out
    if tile.splits > 1:
        target = torch.empty((tile.splits, *out.shape), dtype=torch.float32, device=x.device)
    _matrix_kernel[(programs, tile.splits)](
        x,
        weight,
        target,
        rows,
        x.stride(0),
        weight.stride(0),
        N=outputs,
        K=inputs,
        BM=max(16, triton.next_power_of_2(rows)),
        BN=tile.outputs,
        BK=tile.depth,
        SPLITS=tile.splits,
        STAGES=tile.stages,
        SWAP=tile.swapped,
        num_warps=tile.warps,
        **overlap(rows),
    )
    if tile.splits > 1:
        block = 1024 if out.numel() >= 1 << 17 else 256
        _add_kernel[(triton.cdiv(out.numel(), block),)](
            target,
            out,
            out.numel(),
            SPLITS=tile.splits,
            BLOCK=block,
            num_warps=block // 256,
            **overlap(rows),
        )
    return out
