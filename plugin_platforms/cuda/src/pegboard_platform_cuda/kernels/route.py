"""From router logits to experts: the likeliest of each token, with their shares."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, check-untyped-defs=False
from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["moe_route"]


@triton.jit(do_not_specialize=["tokens"])
def _route_kernel(
    logits, weights, ids, tokens, stride,
    EXPERTS: tl.constexpr, K: tl.constexpr, RENORMALISE: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, CHOSEN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    expert = tl.arange(0, BLOCK)
    there = row < tokens
    mask = there[:, None] & (expert < EXPERTS)[None, :]
    x = tl.load(logits + row[:, None] * stride + expert[None, :], mask=mask, other=float("-inf"))
    x = x.to(tl.float32)
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
    tokens, experts = logits.shape
    weights = torch.empty((tokens, top_k), dtype=torch.float32, device=logits.device)
    ids = torch.empty((tokens, top_k), dtype=torch.int32, device=logits.device)
    if not tokens:
        return weights, ids
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    block = triton.next_power_of_2(experts)
    rows = 1 if tokens <= 1024 else max(512 // block, 1)
    _route_kernel[(triton.cdiv(tokens, rows),)](
        logits,
        weights,
        ids,
        tokens,
        logits.stride(0),
        EXPERTS=experts,
        K=top_k,
        RENORMALISE=renormalise,
        ROWS=rows,
        BLOCK=block,
        CHOSEN=triton.next_power_of_2(top_k),
        num_warps=max(rows * block // 512, 1),
    )
    return weights, ids
