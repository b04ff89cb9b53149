"""The weight owners of layers stored in plain types: matrices in the compute dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from pegboard.api.quant import LayerMethod, LayerSpec, ParallelRole, ParamSpec
from pegboard.nn.moe_ops import moe_experts
from pegboard.nn.ops import linear
from pegboard.nn.weighted import dtype_name

__all__ = ["PlainExperts", "PlainMethod", "plain_method", "shard_axis"]

_AXES: Mapping[ParallelRole, int | None] = {"replicated": None, "column": 0, "vocab": 0, "row": 1}


def shard_axis(role: ParallelRole) -> int | None:
    """Axis of a weight ``[out, in]`` that tensor parallelism splits, None for a replicated one."""
    return _AXES[role]


class PlainMethod:
    """`LinearMethod` for linear layers, embeddings and heads; joins the parts into one matrix."""

    def __init__(
        self,
        layer: LayerSpec,
        dtype: torch.dtype,
        linear: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = linear,
    ) -> None:
        """`linear` is the op of that name."""
        self._layer = layer
        self._dtype = dtype
        self._linear = linear

    def parameters(self, part: int) -> tuple[ParamSpec, ...]:
        shape = (self._layer.part_sizes[part], self._layer.in_features)
        axis = shard_axis(self._layer.role)
        return (ParamSpec("weight", shape, dtype_name(self._dtype), axis),)

    def finalise(
        self, loaded: Mapping[str, Sequence[torch.Tensor]], runtime: Mapping[str, Any] | None
    ) -> Mapping[str, Any]:
        parts = loaded["weight"]
        if runtime is not None:
            torch.cat(tuple(parts), out=runtime["weight"])
            return runtime
        return {"weight": parts[0] if len(parts) == 1 else torch.cat(tuple(parts))}

    def apply(self, params: Mapping[str, Any], x: torch.Tensor) -> torch.Tensor:
        return self._linear(x, params["weight"])

    def lookup(self, params: Mapping[str, Any], ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, params["weight"])

    def dequantise(self, params: Mapping[str, Any]) -> torch.Tensor:
        weight: torch.Tensor = params["weight"]
        return weight.float()


class PlainExperts:
    """`ExpertsMethod` of plain types: ``gate_up [E, 2 I, H]`` and ``down [E, H, I]``."""

    def __init__(
        self,
        layer: LayerSpec,
        dtype: torch.dtype,
        experts: Callable[..., torch.Tensor] = moe_experts,
    ) -> None:
        """`experts` is the op ``moe_experts``."""
        self._layer = layer
        self._dtype = dtype
        self._experts = experts
        self._inner = layer.part_sizes[0] // layer.world

    def parameters(self, part: int) -> tuple[ParamSpec, ...]:
        inner, _, hidden = self._layer.part_sizes
        shape = (inner, hidden) if part < 2 else (hidden, inner)
        axis = 1 if part < 2 else 2
        stack = (self._layer.experts, *shape)
        return (ParamSpec("weight", stack, dtype_name(self._dtype), axis, stacked=True),)

    def allocate(self, device: torch.device) -> Mapping[str, Any]:
        experts, hidden, inner = self._layer.experts, self._layer.in_features, self._inner
        return {
            "gate_up": torch.empty(experts, 2 * inner, hidden, dtype=self._dtype, device=device),
            "down": torch.empty(experts, hidden, inner, dtype=self._dtype, device=device),
        }

    def place(self, params: Mapping[str, Any], part: int, name: str) -> torch.Tensor:
        if part == 2:
            down: torch.Tensor = params["down"]
            return down
        half: torch.Tensor = params["gate_up"].narrow(1, part * self._inner, self._inner)
        return half

    def finalise(
        self, loaded: Mapping[str, Sequence[torch.Tensor]], runtime: Mapping[str, Any] | None
    ) -> Mapping[str, Any]:
        parts = loaded["weight"]
        params = self.allocate(parts[0].device) if runtime is None else runtime
        for part, given in enumerate(parts):
            place = self.place(params, part, "weight")
            if given.data_ptr() != place.data_ptr():
                place.copy_(given)
        return params

    def apply(
        self,
        params: Mapping[str, Any],
        x: torch.Tensor,
        weights: torch.Tensor,
        ids: torch.Tensor,
    ) -> torch.Tensor:
        return self._experts(
            x, params["gate_up"], params["down"], weights, ids, self._layer.activation
        )

    def dequantise(self, params: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        return params["gate_up"].float(), params["down"].float()


def plain_method(
    layer: LayerSpec, dtype: torch.dtype, ops: Mapping[str, Callable[..., Any]]
) -> LayerMethod:
    """The plain owner of any layer; `ops` is the op table, or a mapping with the ops ``linear`` and
    ``moe_experts``."""
    if layer.kind == "experts":
        return PlainExperts(layer, dtype, ops["moe_experts"])
    return PlainMethod(layer, dtype, ops["linear"])
