"""What an attention backend builds for a group, and what it is built from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from pegboard.api.attention_step import AttentionLayer
from pegboard.api.metrics import PluginMetrics

if TYPE_CHECKING:
    import torch

    from pegboard.api.kv import KVGroup, KVLayout, KVSpec, KVTensors

__all__ = ["AttentionContext", "AttentionKernel", "PromptsKernel", "WarmingKernel"]


@attrs.frozen
class AttentionContext:
    """What a kernel is built from: its group, the compute dtype, the device.

    Queries, new keys and new values come in the compute dtype; on a CPU they may be float32 in a
    bfloat16 run. The result has the dtype of the queries.
    """

    group: KVGroup
    dtype: torch.dtype
    device: torch.device
    max_rows: int
    """Most requests in a step."""
    max_tokens: int
    """Most query tokens in a step."""
    platform: Mapping[str, Any] = attrs.field(factory=dict)
    features: frozenset[str] = frozenset()
    """Those that some layer of the model needs or the run asked for."""
    settings: Any = None
    """The plugin's own, see `pegboard.api.hooks.Hooks.pegboard_settings`."""
    metrics: PluginMetrics = attrs.field(factory=PluginMetrics, eq=False, repr=False)
    """The plugin's own namespace of metrics."""


class AttentionKernel(Protocol):
    """What a backend builds for one group. The types of `step`, `layer` and `inputs` are those of
    the group's kind, see above."""

    def layouts(self, spec: KVSpec) -> tuple[KVLayout, ...]:
        """Storage layouts it can use, the preferred first. A kernel of recurrent layers is not
        asked: states have shapes of their own."""
        ...

    def plan(self, step: Any) -> Any:
        """Metadata of one step, handed back to every `forward` of the step."""
        ...

    def forward(self, layer: Any, inputs: Any, kv: KVTensors, metadata: Any) -> torch.Tensor:
        """Store the new keys and values, attend; ``[T, heads, dim]`` in the dtype of the query."""
        ...


class PromptsKernel(AttentionKernel, Protocol):
    """A kernel for rows with several query tokens."""

    def wants(self, query_len: int, kv_len: int) -> bool:
        """Whether such a row is worth its while; asked on the host for each of them in every step.
        One that it does not want goes to the other backend."""
        ...


class WarmingKernel(AttentionKernel, Protocol):
    """A kernel that builds something at first use."""

    def warm_up(self, layer: AttentionLayer) -> None:
        """Build it. Called once for each sort of layer, before memory is measured."""
        ...
