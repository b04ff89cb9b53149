"""Mixtures of experts: a router chooses a few of many gated MLPs for each token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch

from pegboard.api.model import Batch, BuildContext
from pegboard.api.quant import ExpertsMethod, ParamSpec
from pegboard.nn.blocks import GatedMLP
from pegboard.nn.layers import Linear, layer_spec
from pegboard.nn.plain import PlainMethod
from pegboard.nn.weighted import Weighted

__all__ = ["Experts", "MoE"]

PARTS = 3


class Experts(Weighted):
    """The weights of all experts of one mixture, with the parts gate, up and down. Of several
    ranks, each holds a share of the inner size of every expert."""

    def __init__(
        self,
        ctx: BuildContext,
        prefix: str,
        hidden_size: int,
        inner_size: int,
        experts: int,
        activation: str = "silu",
    ) -> None:
        super().__init__(prefix)
        self.layer = layer_spec(
            ctx,
            prefix,
            "experts",
            (hidden_size, (inner_size, inner_size, hidden_size)),
            experts=experts,
            activation=activation,
        )
        self.method = cast("ExpertsMethod", ctx.method(self.layer))
        self._places: dict[str, Any] = {}
        self._comm = ctx.parallel.comm

    def wanted(self) -> tuple[tuple[int, ParamSpec], ...]:
        layer, parts = self.layer, range(PARTS)
        return tuple(
            (part, layer.shared(part, spec))
            for part in parts
            for spec in self.method.parameters(part)
        )

    def place(self, part: int, name: str, device: torch.device) -> torch.Tensor | None:
        if not self._places:
            self._places = dict(self.runtime or self.method.allocate(device))
        return self.method.place(self._places, part, name) if self._places else None

    def take(self, loaded: Mapping[str, Sequence[torch.Tensor]]) -> None:
        known = self.runtime or self._places or None
        self.runtime = dict(self.method.finalise(loaded, known))
        self._places = {}

    def forward(
        self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, batch: Batch
    ) -> torch.Tensor:
        """``x [T, hidden] -> [T, hidden]``; ``weights, ids [T, k]`` as `moe_route` gives them."""
        mixed = self.method.apply(self.runtime, x, weights, ids)
        return mixed if self._comm is None else self._comm.all_reduce(mixed)


class MoE(torch.nn.Module):
    """A mixture of gated MLPs in the place of one: ``x [T, hidden] -> [T, hidden]``.

    Each token goes to the `top_k` experts of highest probability; with `renormalise` their weights
    are made to sum to 1. With `shared_size`, every token also passes a gated MLP of that inner
    size, whose output is multiplied by ``sigmoid(shared_gate(x))`` and added.

    Weights: ``<prefix>.router``, ``<prefix>.experts`` with the parts gate, up and down;
    ``<prefix>.shared.gate_up``, ``<prefix>.shared.down``, ``<prefix>.shared_gate`` where there is a
    shared expert. `layer` is the row of ``batch.taps["routed_experts"]`` that the block fills
    where the batch has that tap.
    """

    def __init__(
        self,
        ctx: BuildContext,
        prefix: str,
        hidden_size: int,
        inner_size: int,
        experts: int,
        top_k: int,
        renormalise: bool,
        *,
        layer: int,
        activation: str = "silu",
        shared_size: int = 0,
    ) -> None:
        super().__init__()
        self.layer, self.top_k, self.renormalise = layer, top_k, renormalise
        self.router = Linear(ctx, f"{prefix}.router", hidden_size, (experts,))
        self.experts = Experts(
            ctx, f"{prefix}.experts", hidden_size, inner_size, experts, activation
        )
        self._route = ctx.ops["moe_route"]
        plain_router = isinstance(self.router.method, PlainMethod)
        self._gate = ctx.ops.widest("moe_gate") if plain_router else None
        self.shared: GatedMLP | None = None
        self.shared_gate: Linear | None = None
        if shared_size:
            self.shared = GatedMLP(
                ctx, f"{prefix}.shared", hidden_size, shared_size, activation=activation
            )
            self.shared_gate = Linear(ctx, f"{prefix}.shared_gate", hidden_size, (1,))

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        weights, ids = self._routed(x, batch)
        tap = batch.taps.get("routed_experts")
        if tap is not None:
            tap[self.layer, : ids.shape[0]].copy_(ids)
        mixed: torch.Tensor = self.experts(x, weights, ids, batch)
        if self.shared is None or self.shared_gate is None:
            return mixed
        gate = torch.sigmoid(self.shared_gate(x, batch))
        both: torch.Tensor = mixed + gate * self.shared(x, batch)
        return both

    def _routed(self, x: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and ids of each token's experts, ``[T, k]``."""
        if self._gate is not None:
            weight = self.router.runtime["weight"]
            routed = self._gate(x, weight, self.top_k, self.renormalise)
        else:
            routed = self._route(self.router(x, batch), self.top_k, self.renormalise)
        weights, ids = routed
        return weights, ids
