"""Who owns a layer's weights and computes with them. Part of `pegboard.api.quant`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pegboard.api.quant_layer import ParamSpec

if TYPE_CHECKING:
    import torch

__all__ = ["ExpertsMethod", "LayerMethod", "LinearMethod"]


class LinearMethod(Protocol):
    """Computes with one layer's weights.

    `Params` are the method's own runtime values: tensors or opaque handles by name. A layer holds
    them and hands them back in every call; the method itself keeps no tensors.
    """

    def parameters(self, part: int) -> tuple[ParamSpec, ...]:
        """Tensors that part number `part` needs."""
        ...

    def finalise(
        self, loaded: Mapping[str, Sequence[torch.Tensor]], runtime: Mapping[str, Any] | None
    ) -> Mapping[str, Any]:
        """Turn loaded tensors (one per part and name, on the device, this rank's shard) into
        runtime parameters.

        May consume `loaded`. With `runtime` given (a weight update) the existing parameters are
        written in place, so that captured graphs stay valid.
        """
        ...

    def apply(self, params: Mapping[str, Any], x: torch.Tensor) -> torch.Tensor:
        """``x [rows, in] -> [rows, sum(part_sizes)]`` in the dtype of `x`, without bias.

        `x` has the compute dtype, or is float32 where a `lookup` gave that. Logits (of a head or a
        tied embedding) may be float32 whatever the dtype of `x`.
        """
        ...

    def lookup(self, params: Mapping[str, Any], ids: torch.Tensor) -> torch.Tensor:
        """Rows of an embedding: ``ids [n] -> [n, in]`` in the compute dtype.

        May be float32 on a CPU, where many processors have no units for narrower types: all
        activations of the step are float32 then, and every layer gives what it is given.
        """
        ...

    def dequantise(self, params: Mapping[str, Any]) -> torch.Tensor:
        """The whole weight ``float32 [sum(part_sizes), in]``: the oracle of `apply` and
        `lookup`."""
        ...


class ExpertsMethod(Protocol):
    """Computes with the weights of all experts of one mixture: parts gate, up and down.

    As with `LinearMethod`, the layer holds the parameters and hands them back in every call.
    """

    def parameters(self, part: int) -> tuple[ParamSpec, ...]:
        """Tensors that part number `part` needs, those of experts `ParamSpec.stacked`."""
        ...

    def allocate(self, device: torch.device) -> Mapping[str, Any]:
        """Runtime parameters before the first load, their contents undefined.

        The loader fills them tensor by tensor through `place`, so that a mixture is never held
        twice. May be empty if nothing can be filled that way.
        """
        ...

    def place(self, params: Mapping[str, Any], part: int, name: str) -> torch.Tensor | None:
        """Where among the runtime parameters the loader may write tensor `name` of a part: memory
        of the shape (this rank's shard) and dtype of its `ParamSpec`. None: nowhere, so that it is
        delivered in memory of its own."""
        ...

    def finalise(
        self, loaded: Mapping[str, Sequence[torch.Tensor]], runtime: Mapping[str, Any] | None
    ) -> Mapping[str, Any]:
        """Make runtime parameters complete.

        As `LinearMethod.finalise`; `runtime` is also given in a first load through `place`, what
        lies in its place already is the same memory in `loaded`.
        """
        ...

    def apply(
        self,
        params: Mapping[str, Any],
        x: torch.Tensor,
        weights: torch.Tensor,
        ids: torch.Tensor,
    ) -> torch.Tensor:
        """The weighted sum of what the chosen experts make of each row: ``x [rows, in] -> [rows,
        in]`` in the dtype of `x`.

        ``weights float32 [rows, k]``, ``ids int32 [rows, k]`` from 0 to ``experts - 1``, as the op
        ``moe_route`` gives them.
        """
        ...

    def dequantise(self, params: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """``gate_up float32 [experts, 2 inner, in]`` and ``down float32 [experts, in, inner]``: the
        oracle of `apply`, with the op ``moe_experts``."""
        ...


LayerMethod = LinearMethod | ExpertsMethod
