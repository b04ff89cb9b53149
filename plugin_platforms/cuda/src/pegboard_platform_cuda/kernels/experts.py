"""The experts of a mixture: gated MLPs, each over the tokens that chose it.

Floor for E=128, H=2048, SIZE=768 in bfloat16: an expert's weights are 9.4 MB, so a token with 8
experts takes 16.9 µs at 4.47 TB/s; 256 tokens touch all 128 (1.2 GB), 270 µs; 16,384 tokens are
1.24 TFLOP, 1.66 ms at 747 TFLOP/s. Two paths: *few* pairs are multiplied one by one, by element, in
two launches; *many* are sorted by expert, multiplied in blocks on the matrix units, and added per
token at the end, in the order of the token's experts.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, check-untyped-defs=False
from __future__ import annotations

import torch
import triton
import triton.language as tl

from pegboard_platform_cuda.kernels.activations import gelu_tanh, silu
from pegboard_platform_cuda.kernels.sort import most_blocks, sort_pairs
from pegboard_platform_cuda.tiles import FEW_PAIRS, ExpertTile, expert_tile

__all__ = ["moe_experts"]


@triton.jit
def _gated(gate, up, KIND: tl.constexpr, SILU: tl.constexpr):
    """Activation of the gate times up, each rounded to `KIND` where a plain op rounds."""
    gate, up = gate.to(KIND).to(tl.float32), up.to(KIND).to(tl.float32)
    active = silu(gate) if SILU else gelu_tanh(gate)
    return (active.to(KIND).to(tl.float32) * up).to(KIND)


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
    result = _gated(tl.sum(gate, 1), tl.sum(up, 1), out.dtype.element_ty, SILU)
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


@triton.jit
def _block_up_kernel(
    x, weight, pairs, experts, starts, ends, out, x_stride, expert_stride, weight_stride,
    K: tl.constexpr, H: tl.constexpr, SIZE: tl.constexpr, SILU: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, EXACT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(1)
    expert = tl.load(experts + block).to(tl.int64)
    if expert >= 0:
        place = tl.load(starts + block) + tl.arange(0, BM)
        have = place < tl.load(ends + block)
        pair = tl.load(pairs + place, mask=have, other=0)
        column = tl.program_id(0) * BN + tl.arange(0, BN)
        there = column < SIZE
        depth = tl.arange(0, BK)
        from_x = x + (pair // K).to(tl.int64)[:, None] * x_stride + depth[None, :]
        from_gate = weight + expert * expert_stride + column[None, :] * weight_stride
        from_gate += depth[:, None]
        gate = tl.zeros([BM, BN], tl.float32)
        up = tl.zeros([BM, BN], tl.float32)
        for start in tl.range(0, H, BK, num_stages=STAGES):
            x_mask, weight_mask = have[:, None], there[None, :]
            if H % BK:
                x_mask = x_mask & (start + depth < H)[None, :]
                weight_mask = weight_mask & (start + depth < H)[:, None]
            given = tl.load(from_x + start, mask=x_mask, other=0.0)
            first = tl.load(from_gate + start, mask=weight_mask, other=0.0)
            second = tl.load(from_gate + SIZE * weight_stride + start, mask=weight_mask, other=0.0)
            gate = tl.dot(given, first, gate, input_precision=EXACT)
            up = tl.dot(given, second, up, input_precision=EXACT)
        result = _gated(gate, up, out.dtype.element_ty, SILU)
        target = out + place.to(tl.int64)[:, None] * SIZE + column[None, :]
        tl.store(target, result, mask=have[:, None] & there[None, :])


@triton.jit
def _block_down_kernel(
    inner, weight, pairs, experts, starts, ends, out, expert_stride, weight_stride,
    H: tl.constexpr, SIZE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    EXACT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(1)
    expert = tl.load(experts + block).to(tl.int64)
    if expert >= 0:
        place = tl.load(starts + block) + tl.arange(0, BM)
        have = place < tl.load(ends + block)
        pair = tl.load(pairs + place, mask=have, other=0)
        column = tl.program_id(0) * BN + tl.arange(0, BN)
        there = column < H
        depth = tl.arange(0, BK)
        from_inner = inner + place.to(tl.int64)[:, None] * SIZE + depth[None, :]
        from_weight = weight + expert * expert_stride + column[None, :] * weight_stride
        from_weight += depth[:, None]
        total = tl.zeros([BM, BN], tl.float32)
        for start in tl.range(0, SIZE, BK, num_stages=STAGES):
            inner_mask, weight_mask = have[:, None], there[None, :]
            if SIZE % BK:
                inner_mask = inner_mask & (start + depth < SIZE)[None, :]
                weight_mask = weight_mask & (start + depth < SIZE)[:, None]
            given = tl.load(from_inner + start, mask=inner_mask, other=0.0)
            part = tl.load(from_weight + start, mask=weight_mask, other=0.0)
            total = tl.dot(given, part, total, input_precision=EXACT)
        target = out + pair.to(tl.int64)[:, None] * H + column[None, :]
        tl.store(target, total.to(out.dtype.element_ty), mask=have[:, None] & there[None, :])


@triton.jit
def _add_kernel(
    results, weights, out, K: tl.constexpr, H: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < H
    total = tl.zeros([BLOCK], tl.float32)
    for choice in tl.static_range(K):
        pair = token * K + choice
        value = tl.load(results + pair * H + column, mask=mask, other=0.0).to(tl.float32)
        total += value * tl.load(weights + pair)
    tl.store(out + token * H + column, total.to(out.dtype.element_ty), mask=mask)


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
    if ids.numel() <= FEW_PAIRS:
        return _few(x, gate_up, down, weights, ids, activation == "silu")
    return _many(x, gate_up, down, weights, ids, activation == "silu")


def _dense(weight: torch.Tensor) -> torch.Tensor:
    return weight if weight.stride(2) == 1 else weight.contiguous()


def _few(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    silu_gate: bool,
) -> torch.Tensor:
    tokens, hidden = x.shape
    size, choices = down.shape[2], ids.shape[1]
    inner = torch.empty((ids.numel(), size), dtype=x.dtype, device=x.device)
    sizes = {"K": choices, "H": hidden, "SIZE": size}
    tile = expert_tile(ids.numel(), gate_up.shape[0])
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


def _many(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    silu_gate: bool,
) -> torch.Tensor:
    tokens, hidden = x.shape
    experts, size = down.shape[0], down.shape[2]
    tile = expert_tile(ids.numel(), experts)
    work = sort_pairs(ids, experts, tile.rows)
    blocks = most_blocks(ids.numel(), experts, tile.rows)
    inner = torch.empty((ids.numel(), size), dtype=x.dtype, device=x.device)
    results = torch.empty((ids.numel(), hidden), dtype=x.dtype, device=x.device)
    how = _launch_options(tile, x.dtype)
    _block_up_kernel[(triton.cdiv(size, tile.up), blocks)](
        x,
        gate_up,
        *work,
        inner,
        x.stride(0),
        gate_up.stride(0),
        gate_up.stride(1),
        K=ids.shape[1],
        H=hidden,
        SIZE=size,
        SILU=silu_gate,
        BN=tile.up,
        **how,
    )
    _block_down_kernel[(triton.cdiv(hidden, tile.down), blocks)](
        inner,
        down,
        *work,
        results,
        down.stride(0),
        down.stride(1),
        H=hidden,
        SIZE=size,
        BN=tile.down,
        **how,
    )
    return _added(results, weights, tokens)


def _launch_options(tile: ExpertTile, dtype: torch.dtype) -> dict[str, object]:
    return {
        "BM": tile.rows,
        "BK": tile.depth,
        "EXACT": "ieee" if dtype == torch.float32 else "tf32",
        "STAGES": tile.stages,
        "num_warps": tile.warps,
    }


def _added(results: torch.Tensor, weights: torch.Tensor, tokens: int) -> torch.Tensor:
    hidden, block = results.shape[1], min(1024, triton.next_power_of_2(results.shape[1]))
    out = torch.empty((tokens, hidden), dtype=results.dtype, device=results.device)
    _add_kernel[(tokens, triton.cdiv(hidden, block))](
        results, weights, out, K=weights.shape[1], H=hidden, BLOCK=block, num_warps=4
    )
    return out
