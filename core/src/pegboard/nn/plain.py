"""The weight owner of layers stored in plain types: matrices in the compute dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from pegboard.api.quant import LayerSpec, ParallelRole, ParamSpec
from pegboard.nn.ops import linear
from pegboard.nn.weighted import dtype_name

__all__ = ["PlainMethod", "shard_axis"]

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
