"""Stored parts of layers, and what the loader makes of them, for the quantisation kit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import torch

from pegboard.api.checkpoint import PLAIN_TYPES
from pegboard.api.quant import LayerSpec, ParamSpec

__all__ = ["StoredPart", "delivered", "shard", "weight"]


@attrs.frozen(eq=False)
class StoredPart:
    """One part of a layer as a checkpoint has it."""

    tensors: Mapping[str, tuple[str, torch.Tensor]]
    """By the last component of its name, the stored type and the tensor as the loader reads it
    (bytes, ``uint8``, for block types)."""
    weight: torch.Tensor
    """The numbers that it means: ``float64 [outputs, in_features]``."""


def weight(parts: Sequence[StoredPart]) -> torch.Tensor:
    """The numbers of a stack: ``float64 [outputs, in_features]``."""
    return torch.cat([part.weight.double() for part in parts])


def shard(tensor: torch.Tensor, spec: ParamSpec, layer: LayerSpec | None) -> torch.Tensor:
    """What the rank of `layer` has of a tensor; all of it without one."""
    if layer is None or spec.shard_axis is None or layer.world == 1:
        return tensor.clone()
    start, stop = spec.span(layer.rank, layer.world)
    return tensor.narrow(spec.shard_axis, start, stop - start).clone()


def delivered(tensor: torch.Tensor, spec: ParamSpec, stored: str) -> torch.Tensor:
    """A tensor as the loader delivers it: plain types in the wanted dtype, others as stored."""
    dtype = getattr(torch, spec.dtype)
    if stored in PLAIN_TYPES:
        return tensor.to(dtype)
    assert tensor.dtype == dtype, (
        f"{spec.name!r} is wanted as {spec.dtype}; of a tensor stored as {stored} the loader has "
        f"{tensor.dtype}"
    )
    return tensor
