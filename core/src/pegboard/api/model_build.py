"""What a model is built from and what it computes. Part of `pegboard.api.model`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from pegboard.api.metrics import PluginMetrics

if TYPE_CHECKING:
    import torch

    from pegboard.api.attention import AttentionKernel
    from pegboard.api.kv import KVTensors
    from pegboard.api.platform import Communication
    from pegboard.api.quant import LayerMethod, LayerSpec, SourceTensor

__all__ = ["Batch", "BuildContext", "GroupBatch", "LanguageModel", "Parallel"]


@attrs.frozen
class Parallel:
    """Tensor-parallel layout of this worker."""

    rank: int = 0
    world: int = 1
    comm: Communication | None = attrs.field(default=None, eq=False, repr=False)
    """How ranks reach one another; None with one rank."""


@attrs.frozen(eq=False)
class BuildContext:
    """What a family builds from."""

    config: Any
    dtype: torch.dtype
    device: torch.device
    ops: Any
    """`pegboard.nn.OpTable`."""
    method: Callable[[LayerSpec], LayerMethod]
    """Gives every layer its weight owner (quantisation applied)."""
    sources: Callable[[str, int], Sequence[tuple[SourceTensor, ...]]]
    """``(target prefix, parts)`` → stored tensors per part."""
    parallel: Parallel = Parallel()
    layers: range | None = None
    """This pipeline stage's layers; None for all."""
    max_positions: int | None = None
    """Longest sequence of this run (`max_model_len`), for tables by position; None: what the model
    was made for."""
    settings: Any = None
    """The family's own, as in `ConfigInput`."""
    metrics: PluginMetrics = attrs.field(factory=PluginMetrics, eq=False, repr=False)
    """The plugin's own namespace of metrics."""


@attrs.frozen(eq=False)
class GroupBatch:
    """One KV group in one step: its kernel and what the kernel planned."""

    kernel: AttentionKernel
    metadata: Any
    write_slots: torch.Tensor | None = None
    """int64 [T], as `AttentionStep.slots`, where the layers store keys and values before they call
    the kernel; None if the kernel does that itself."""


@attrs.frozen(eq=False)
class Batch:
    """Everything that a forward pass needs beside weights. It is an argument of every module;
    nothing is global."""

    ids: torch.Tensor
    """int64 [T]"""
    positions: torch.Tensor
    """int64 [T]"""
    logit_rows: torch.Tensor
    """int64 [L]: the query tokens whose logits are wanted."""
    groups: Sequence[GroupBatch]
    kv: Mapping[str, KVTensors]
    """Storage by slot key."""
    embeddings: torch.Tensor | None = None
    """[T, hidden]: given instead of `ids` where a request brings its own."""
    adapters: torch.Tensor | None = None
    """int32 [T]: adapter of each token, -1 for none."""
    taps: Mapping[str, torch.Tensor] = attrs.field(factory=dict)
    """Preallocated places that a model fills on request. ``routed_experts``, int32 ``[layers, at
    least T, k]``: the experts that each token was sent to, the likeliest first; rows of layers that
    are no mixture, and those after T, are left as they are."""
    extras: Mapping[str, torch.Tensor] = attrs.field(factory=dict)


class LanguageModel(Protocol):
    """What `ModelFamily.build` returns: a ``torch.nn.Module`` with these methods."""

    def forward(self, batch: Batch, carry: torch.Tensor | None = None) -> torch.Tensor:
        """Hidden states ``[T, hidden]``; `carry` are those of the previous pipeline stage."""
        ...

    def logits(self, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
        """``hidden [L, hidden] -> [L, vocab]``, final norm included."""
        ...
