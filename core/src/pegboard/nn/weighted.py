"""The leaf that holds weights: says what it wants, is given it, keeps its runtime form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pegboard.api.quant import ParamSpec
from pegboard.errors import CheckpointError

__all__ = ["Weighted", "dtype_name"]


def dtype_name(dtype: torch.dtype) -> str:
    """``torch.float32`` → ``"float32"``, the form in which contracts name dtypes."""
    return str(dtype).removeprefix("torch.")


class Weighted(torch.nn.Module, ABC):
    """A leaf: a module with weights of its own.

    The loader walks ``model.modules()``, reads for each leaf what `wanted` lists (the tensor
    ``<source>.<name>`` of each part, by the family's weight map), and calls `finalise` once per
    load or weight update. Runtime weights are whatever the leaf made of them; they are not
    ``torch.nn.Parameter``s.
    """

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.prefix = prefix
        """Name in the model's own tree, the target of weight rules."""
        self.runtime: dict[str, Any] = {}
        """Runtime weights by name, empty until the first `finalise`."""

    @abstractmethod
    def wanted(self) -> tuple[tuple[int, ParamSpec], ...]:
        """``(part, specification)`` of every tensor that must be delivered."""

    def finalise(self, loaded: Mapping[str, Sequence[torch.Tensor]]) -> None:
        """Take delivery of this rank's shards, on the device.

        `loaded` has, by name, one tensor per part that wants it, in part order. May consume
        `loaded`. Called again for a weight update, and then writes into the existing runtime
        weights. Raises `CheckpointError` if a wanted tensor is absent.
        """
        counts: dict[str, int] = {}
        for _, spec in self.wanted():
            counts[spec.name] = counts.get(spec.name, 0) + 1
        given = {name: len(tensors) for name, tensors in loaded.items()}
        if given != counts:
            raise CheckpointError(f"{self.prefix}: wants tensors {counts}, got {given}")
        self.take(loaded)

    def place(self, part: int, name: str, device: torch.device) -> torch.Tensor | None:
        """Memory of the shape (this rank's shard) and dtype of tensor `name` of a part, where the
        loader may write it; it is delivered all the same. None where there is no such place: it is
        delivered in memory of its own, which the leaf may keep.
        """
        return None

    @abstractmethod
    def take(self, loaded: Mapping[str, Sequence[torch.Tensor]]) -> None:
        """Turn delivered tensors into `runtime`: the half of `finalise` that a leaf writes."""

    def loaded(self) -> bool:
        """Whether the module can be called."""
        return bool(self.runtime) or not self.wanted()

    def runtime_bytes(self) -> int:
        """Bytes of the runtime weights that are tensors."""
        held = (value for value in self.runtime.values() if isinstance(value, torch.Tensor))
        return sum(tensor.nbytes for tensor in held)

    def store(self, name: str, value: torch.Tensor) -> None:
        """Keep `value` as runtime weight `name`, in the storage of the former value if there is
        one.
        """
        if name in self.runtime:
            self.runtime[name].copy_(value)
        else:
            self.runtime[name] = value
