"""Ops of mixtures of experts: choosing experts for each token, and computing with those chosen."""

from __future__ import annotations

import torch

__all__ = ["moe_experts", "moe_gate", "moe_route"]


def moe_route(
    logits: torch.Tensor, top_k: int, renormalise: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `top_k` likeliest of E experts: ``logits [T, E]`` -> ``weights float32 [T, k]``, ``ids
    int32 [T, k]``.

    Weights are the softmax over all experts, in float32, the largest first, equal ones by id. With
    `renormalise` they are divided by their sum. Source: Shazeer et al., "Outrageously Large Neural
    Networks", 2017.
    """
    shares = torch.softmax(logits.float(), -1)
    # Of equal values `topk` may give any, a stable sort the first.
    ranked = shares.sort(dim=-1, descending=True, stable=True)
    weights, ids = ranked.values[:, :top_k], ranked.indices[:, :top_k]
    if renormalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights.contiguous(), ids.to(torch.int32)


def moe_gate(
    x: torch.Tensor, weight: torch.Tensor, top_k: int, renormalise: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `top_k` likeliest of E experts by a router: ``x [T, H]``, ``weight [E, H]`` -> ``weights
    float32 [T, k]``, ``ids int32 [T, k]``.

    Joins `linear` and `moe_route`: the logits are rounded to the dtype of `x`.
    """
    from pegboard.nn.ops import linear

    return moe_route(linear(x, weight), top_k, renormalise)


def moe_experts(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    activation: str,
) -> torch.Tensor:
    """Gated MLPs of the chosen experts, summed by weight: ``x [T, H] -> [T, H]`` in its dtype.

    ``gate_up [E, 2 I, H]``, ``down [E, H, I]``, ``weights float32 [T, k]``, ``ids int32 [T, k]``
    from 0 to E - 1, no expert twice in a row. `activation` names the op ``<activation>_mul``.
    Products are in the dtype of the experts' weights, as those of `linear`; the sum over experts is
    in float32, rounded once. A version reads nothing of `ids` on the host.
    """
    from pegboard.nn.ops import OPS, linear

    activate = OPS[f"{activation}_mul"].plain
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in ids.unique().tolist():
        rows, choices = (ids == expert).nonzero(as_tuple=True)
        made = linear(activate(linear(x[rows], gate_up[expert])), down[expert])
        total.index_add_(0, rows, made.float() * weights[rows, choices, None])
    return total.to(x.dtype)
