"""The experts of a mixture: gated MLPs, each over the tokens that chose it.

Floor for E=128, H=2048, SIZE=768 in bfloat16: an expert's weights are 9.4 MB, so a token with 8
experts takes 16.9 µs at 4.47 TB/s; 256 tokens touch all 128 (1.2 GB), 270 µs. Two paths: *few*
pairs are multiplied one by one, by element, in two launches; for *many* see `grouped`.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, check-untyped-defs=False
from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl

from pegboard_platform_cuda.kernels.activations import gated
from pegboard_platform_cuda.kernels.grouped import many
from pegboard_platform_cuda.tiles import FEW_PAIRS, ExpertTile, expert_tile, fitted

__all__ = ["moe_experts"]


@triton.jit
def _pair_up_kernel(
    x, weight, ids, out, x_stride, expert_stride, weight_stride,
    K: tl.constexpr, H: tl.constexpr, SIZE: tl.constexpr, SILU: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(1)
    token = (pair // K).to(tl.int64)
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    there = column < SIZE
    expert = tl.load(ids + pair).to(tl.int64)
    gate_rows = weight + expert * expert_stride + column[:, None] * weight_stride
    gate = tl.zeros([BN, BK], tl.float32)
    up = tl.zeros([BN, BK], tl.float32)
    for start in tl.range(0, H, BK, num_stages=STAGES):
        feature = start + tl.arange(0, BK)
        inside = feature < H
        mask = there[:, None] & inside[None, :]
        given = tl.load(x + token * x_stride + feature, mask=inside, other=0.0).to(tl.float32)
        place = gate_rows + feature[None, :]
        first = tl.load(place, mask=mask, other=0.0)
        second = tl.load(place + SIZE * weight_stride, mask=mask, other=0.0)
        gate += first.to(tl.float32) * given[None, :]
        up += second.to(tl.float32) * given[None, :]
    result = gated(tl.sum(gate, 1), tl.sum(up, 1), out.dtype.element_ty, SILU)
    tl.store(out + pair * SIZE + column, result, mask=there)


@triton.jit
def _pair_down_kernel(
    inner, weight, weights, ids, out, expert_stride, weight_stride,
    K: tl.constexpr, H: tl.constexpr, SIZE: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(1)
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    there = column < H
    total = tl.zeros([BN], tl.float32)
    for choice in range(0, K):
        pair = token * K + choice
        expert = tl.load(ids + pair).to(tl.int64)
        rows = weight + expert * expert_stride + column[:, None] * weight_stride
        part = tl.zeros([BN, BK], tl.float32)
        for start in tl.range(0, SIZE, BK, num_stages=STAGES):
            feature = start + tl.arange(0, BK)
            inside = feature < SIZE
            mask = there[:, None] & inside[None, :]
            given = tl.load(inner + pair * SIZE + feature, mask=inside, other=0.0)
            found = tl.load(rows + feature[None, :], mask=mask, other=0.0)
            part += found.to(tl.float32) * given.to(tl.float32)[None, :]
        result = tl.sum(part, 1).to(out.dtype.element_ty).to(tl.float32)
        total += result * tl.load(weights + pair)
    tl.store(out + token.to(tl.int64) * H + column, total.to(out.dtype.element_ty), mask=there)


def moe_experts(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    activation: str,
) -> torch.Tensor:
    """The weighted sum of each token's experts: ``[T, H]`` like ``x``.

    ``gate_up [E, 2 I, H]`` (gate | up), ``down [E, H, I]``, ``weights float32 [T, k]``, ``ids int32
    [T, k]``; `activation` is ``silu`` or ``gelu_tanh``. Results of each product are rounded to the
    dtype of `x`, the sum over experts is in float32.
    """
    if not len(x):
        return torch.empty_like(x)
    x = x if x.stride(1) == 1 else x.contiguous()
    weights, ids = weights.contiguous(), ids.contiguous()
    gate_up, down = _dense(gate_up), _dense(down)
    work = _few if ids.numel() <= FEW_PAIRS else many
    tile = expert_tile(ids.numel(), gate_up.shape[0])
    if tile.rows > 1 and x.is_cuda:
        tile = fitted(tile, x.element_size(), _shared_memory(x.device))
    return work(x, gate_up, down, weights, ids, activation == "silu", tile)


@lru_cache
def _shared_memory(device: torch.device) -> int:
    """Bytes that a program may hold on this device."""
    found = triton.runtime.driver.active.utils.get_device_properties(device.index)
    return int(found["max_shared_mem"])


def _dense(weight: torch.Tensor) -> torch.Tensor:
    return weight if weight.stride(2) == 1 else weight.contiguous()


def _few(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    silu_gate: bool,
    tile: ExpertTile,
) -> torch.Tensor:
    tokens, hidden = x.shape
    size, choices = down.shape[2], ids.shape[1]
    inner = torch.empty((ids.numel(), size), dtype=x.dtype, device=x.device)
    sizes = {"K": choices, "H": hidden, "SIZE": size}
    _pair_up_kernel[(triton.cdiv(size, tile.up), ids.numel())](
        x,
        gate_up,
        ids,
        inner,
        x.stride(0),
        gate_up.stride(0),
        gate_up.stride(1),
        **sizes,
        SILU=silu_gate,
        BN=tile.up,
        BK=min(tile.depth, triton.next_power_of_2(hidden)),
        STAGES=tile.stages,
        num_warps=tile.warps,
    )
    out = torch.empty((tokens, hidden), dtype=x.dtype, device=x.device)
    _pair_down_kernel[(triton.cdiv(hidden, tile.down), tokens)](
        inner,
        down,
        weights,
        ids,
        out,
        down.stride(0),
        down.stride(1),
        **sizes,
        BN=tile.down,
        BK=min(tile.depth, triton.next_power_of_2(size)),
        STAGES=tile.stages,
        num_warps=tile.warps,
    )
    return out
