"""From router logits to experts: the likeliest of each token, with their shares.

Floor of a router of 128 experts with H=2048 in bfloat16: 0.5 MB, 0.1 µs, so that launches are all
that counts. `moe_gate` has two, where a product, the sum of its splits, and the choice would have
three: expected are 4.5 µs for up to 64 rows.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, check-untyped-defs=False
from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from pegboard_platform_cuda import tiles

__all__ = ["moe_gate", "moe_route"]

_NARROW = (torch.bfloat16, torch.float16)
_KINDS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit(do_not_specialize=["rows"])
def _gate_kernel(
    x, weight, parts, rows, x_stride, weight_stride,
    N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    SPLITS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(2)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    have, there = row < rows, column < N
    steps: tl.constexpr = ((K + BK - 1) // BK + SPLITS - 1) // SPLITS
    from_x = x + row.to(tl.int64)[:, None] * x_stride
    from_weight = weight + column[None, :] * weight_stride
    total = tl.zeros([BM, BN], tl.float32)
    for step in tl.range(0, steps, num_stages=STAGES):
        feature = (split * steps + step) * BK + tl.arange(0, BK)
        x_mask, weight_mask = have[:, None], there[None, :]
        if K % (BK * SPLITS):
            x_mask = x_mask & (feature < K)[None, :]
            weight_mask = weight_mask & (feature < K)[:, None]
        given = tl.load(from_x + feature[None, :], mask=x_mask, other=0.0)
        part = tl.load(from_weight + feature[:, None], mask=weight_mask, other=0.0)
        total = tl.dot(given, part, total)
    place = parts + (split * rows + row)[:, None] * N + column[None, :]
    tl.store(place, total, mask=have[:, None] & there[None, :])


@triton.jit(do_not_specialize=["tokens"])
def _route_kernel(
    logits, weights, ids, tokens, stride,
    EXPERTS: tl.constexpr, K: tl.constexpr, RENORMALISE: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, CHOSEN: tl.constexpr, PARTS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    expert = tl.arange(0, BLOCK)
    there = row < tokens
    mask = there[:, None] & (expert < EXPERTS)[None, :]
    place = logits + row[:, None] * stride + expert[None, :]
    x = tl.load(place, mask=mask, other=float("-inf")).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        x += tl.load(place + part * tokens * stride, mask=mask, other=0.0)
    x = x.to(KIND).to(tl.float32)  # as logits of that type would have been rounded
    top = tl.max(x, 1)
    share = tl.exp(x - tl.where(there, top, 0.0)[:, None])
    share = share / tl.where(there, tl.sum(share, 1), 1.0)[:, None]
    # One key for the share and, among equals, the lowest expert: shares are not negative, so their
    # bits are in their order.
    key = (share.to(tl.int32, bitcast=True).to(tl.int64) << 32) | (BLOCK - 1 - expert)[None, :]
    key = tl.where(mask, key, -(1 << 62))
    place = tl.arange(0, CHOSEN)
    chosen = tl.zeros([ROWS, CHOSEN], tl.int64)
    for step in tl.static_range(K):
        best = tl.max(key, 1)
        chosen = tl.where(place[None, :] == step, best[:, None], chosen)
        key = tl.where(key == best[:, None], -(1 << 62), key)
    found = BLOCK - 1 - (chosen & 0xFFFFFFFF).to(tl.int32)
    weight = (chosen >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    used = place < K
    if RENORMALISE:
        weight = weight / tl.sum(tl.where(used[None, :], weight, 0.0), 1)[:, None]
    mask = there[:, None] & used[None, :]
    out = row[:, None] * K + place[None, :]
    tl.store(weights + out, weight, mask=mask)
    tl.store(ids + out, found, mask=mask)


def moe_route(
    logits: torch.Tensor, top_k: int, renormalise: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights ``float32 [T, k]`` and experts ``int32 [T, k]`` of ``logits [T, E]``: the `top_k`
    likeliest after a softmax in float32, the lowest expert among equals; with `renormalise` the
    weights of a token sum to 1."""
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    return _routed(logits[None], top_k, renormalise, logits.dtype)


def moe_gate(
    x: torch.Tensor, weight: torch.Tensor, top_k: int, renormalise: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """`moe_route` of the logits ``x [T, H] @ weight [E, H].T``, which are rounded to the dtype of
    `x`."""
    rows = x.shape[0]
    if not 0 < rows <= tiles.GATE_ROWS or x.dtype != weight.dtype or x.dtype not in _NARROW:
        logits = F.linear(x.to(weight.dtype), weight).to(x.dtype)
        return moe_route(logits, top_k, renormalise)
    x = x if x.stride(1) == 1 else x.contiguous()
    weight = weight if weight.stride(1) == 1 else weight.contiguous()
    return _routed(_products(x, weight, tiles.gate_tile(rows)), top_k, renormalise, x.dtype)


def _products(x: torch.Tensor, weight: torch.Tensor, tile: tiles.GateTile) -> torch.Tensor:
    """``float32 [splits, rows, E]``, whose sum over splits are the logits."""
    (rows, inputs), experts = x.shape, weight.shape[0]
    depth = min(tile.depth, max(triton.next_power_of_2(inputs), 16))
    splits = min(tile.splits, triton.cdiv(inputs, depth))
    columns = min(tile.columns, max(triton.next_power_of_2(experts), 16))
    parts = torch.empty((splits, rows, experts), dtype=torch.float32, device=x.device)
    _gate_kernel[(triton.cdiv(rows, tile.rows), triton.cdiv(experts, columns), splits)](
        x,
        weight,
        parts,
        rows,
        x.stride(0),
        weight.stride(0),
        N=experts,
        K=inputs,
        BM=tile.rows,
        BN=columns,
        BK=depth,
        SPLITS=splits,
        STAGES=tile.stages,
        num_warps=tile.warps,
    )
    return parts


def _routed(
    parts: torch.Tensor, top_k: int, renormalise: bool, kind: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The choice by the sum of ``parts [parts, T, E]``, several of them one behind the other,
    rounded to `kind`."""
    count, tokens, experts = parts.shape
    weights = torch.empty((tokens, top_k), dtype=torch.float32, device=parts.device)
    ids = torch.empty((tokens, top_k), dtype=torch.int32, device=parts.device)
    if not tokens:
        return weights, ids
    block = triton.next_power_of_2(experts)
    rows = 1 if tokens <= 1024 else max(512 // block, 1)
    _route_kernel[(triton.cdiv(tokens, rows),)](
        parts,
        weights,
        ids,
        tokens,
        parts.stride(1),
        EXPERTS=experts,
        K=top_k,
        RENORMALISE=renormalise,
        ROWS=rows,
        BLOCK=block,
        CHOSEN=triton.next_power_of_2(top_k),
        PARTS=count,
        KIND=_KINDS[kind],
        num_warps=max(rows * block // 512, 1),
    )
    return weights, ids
