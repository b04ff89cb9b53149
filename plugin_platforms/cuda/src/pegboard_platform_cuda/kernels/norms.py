"""RMS norms, alone and joined with the addition of a residual.

Floor: each row is read once and written once (with a residual: two reads, two writes), so one row
of 4096 bfloat16 is far below the cost of a launch (about 2 µs inside a graph), and 16,384 rows of
4096 take 60 µs without and 120 µs with a residual at 4.4 TB/s.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, check-untyped-defs=False
from __future__ import annotations

import torch
import triton
import triton.language as tl

from pegboard_platform_cuda.kernels.overlap import overlap, wait

__all__ = ["add_rms_norm", "rms_norm"]

_LONGEST = 65536
"""Features of a row that still fit a program's registers."""


@triton.jit(do_not_specialize=["rows"])
def _norm_kernel(
    x, residual, weight, out, rows, inner, outer_stride, inner_stride, residual_outer,
    residual_inner, eps,
    H: tl.constexpr, ADD: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    feature = tl.arange(0, BLOCK)
    mask = (row < rows)[:, None] & (feature < H)[None, :]
    place = x + ((row // inner) * outer_stride + (row % inner) * inner_stride)[:, None]
    place += feature[None, :]
    factor = tl.load(weight + feature, mask=feature < H, other=0.0).to(tl.float32)
    if EARLY:
        wait()
    value = tl.load(place, mask=mask, other=0.0)
    if ADD:
        other = (
            residual + ((row // inner) * residual_outer + (row % inner) * residual_inner)[:, None]
        )
        added = tl.load(other + feature[None, :], mask=mask, other=0.0)
        value = (value.to(tl.float32) + added.to(tl.float32)).to(x.dtype.element_ty)
        tl.store(place, value, mask=mask)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 1) / H + eps)
    quotient = (wide * scale[:, None]).to(x.dtype.element_ty).to(tl.float32)
    result = (quotient * factor[None, :]).to(out.dtype.element_ty)
    tl.store(out + row[:, None] * H + feature[None, :], result, mask=mask)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`pegboard.nn.ops.rms_norm`; rounds where that does."""
    size = x.shape[-1]
    if size > _LONGEST:
        from pegboard.nn.ops import rms_norm as plain

        return plain(x, weight, eps)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(_rows_of(x), None, weight, out, eps)
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`pegboard.nn.ops.add_rms_norm` in one pass; the sum takes the place of `x`."""
    if x.dtype != residual.dtype or x.shape[-1] > _LONGEST:
        total = x + residual
        return rms_norm(total, weight, eps), total
    rows = _rows_of(x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(rows, _rows_of(residual), weight, out, eps)
    return out, rows.view(x.shape)


def _rows_of(x: torch.Tensor) -> torch.Tensor:
    """Two or three axes, the last one dense: `x` itself, unless it has others."""
    if x.ndim not in (2, 3):
        x = x.reshape(-1, x.shape[-1])
    return x if x.stride(-1) == 1 else x.contiguous()


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    out: torch.Tensor,
    eps: float,
) -> None:
    size = x.shape[-1]
    inner = x.shape[1] if x.ndim == 3 else 1
    rows = x.shape[0] * inner
    if not rows:
        return
    block = triton.next_power_of_2(size)
    tile = max(1024 // block, 1) if block <= 256 else 1
    add = x if residual is None else residual
    _norm_kernel[(triton.cdiv(rows, tile),)](
        x,
        add,
        weight,
        out,
        rows,
        inner,
        x.stride(0),
        x.stride(1) if x.ndim == 3 else 0,
        add.stride(0),
        add.stride(1) if add.ndim == 3 else 0,
        eps,
        H=size,
        ADD=residual is not None,
        ROWS=tile,
        BLOCK=block,
        num_warps=warps(tile * block),
        **overlap(rows),
    )


def warps(elements: int) -> int:
    """Warps of a program over so many elements: 8 a thread, more where there are very many."""
    return min(max(elements // 256, 1), 8 if elements <= 8192 else 16)
