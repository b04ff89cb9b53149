"""Surface *attention*: kernels over the paged KV cache.

Called by: the runner, in the process that holds the device. `plan` once per step and group, then
`forward` once per layer with what `plan` returned. A backend may not keep state between steps
other than scratch memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import attrs

from pegboard.api.descriptor import LazyRef, lazy_ref

if TYPE_CHECKING:
    import torch

    from pegboard.api.kv import KVGroup, KVLayout, KVSpec, KVTensors

__all__ = [
    "AttentionBackend",
    "AttentionContext",
    "AttentionInputs",
    "AttentionKernel",
    "AttentionLayer",
    "AttentionStep",
]


@attrs.frozen
class AttentionBackend:
    """Descriptor. `kernel` refers to ``(ctx: AttentionContext) -> AttentionKernel``.

    Empty tuples mean "any". Selection tries backends by falling `priority` and collects, for its
    error message, the reason why each one does not serve.
    """

    name: str
    kernel: LazyRef = attrs.field(converter=lazy_ref)
    platforms: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ("full",)
    dtypes: tuple[str, ...] = ()
    kv_dtypes: tuple[str, ...] = ()
    head_sizes: tuple[int, ...] = ()
    block_sizes: tuple[int, ...] = ()
    features: frozenset[str] = frozenset()
    """Of ``sinks``, ``soft_cap``, ``non_causal``, ``tree_mask``, ``shared_prefix``,
    ``batch_invariant``."""
    capture: Literal["whole", "piecewise", "none"] = "none"
    """Into which kind of device graph its calls may be recorded."""
    fused_kv_write: bool = True
    """`forward` writes the new keys and values itself."""
    priority: int = 0

    def claims(self) -> tuple[str, ...]:
        return ()


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


@attrs.frozen(eq=False)
class AttentionLayer:
    """Constants of one layer."""

    heads: int
    kv_heads: int
    head_size: int
    scale: float


@attrs.frozen(eq=False)
class AttentionStep:
    """The rows of one step as one group sees them: R requests, T query tokens in request order.

    Row r has ``query_lens[r]`` query tokens, the last of ``kv_lens[r]`` tokens known after this
    step; its tokens lie in
    ``block_table[r, : ceil(kv_lens[r] / block_size)]``. Host lists and tensors hold the same
    values.
    """

    query_lens: Sequence[int]
    kv_lens: Sequence[int]
    block_lists: Sequence[Sequence[int]]
    """Block ids per row."""
    query_starts: torch.Tensor
    """int32 [R + 1]"""
    kv_lens_device: torch.Tensor
    """int32 [R]"""
    block_table: torch.Tensor
    """int32 [R, most blocks of a row]; unused places hold 0, the null block."""
    slots: torch.Tensor
    """int64 [T]: ``block id * block size + offset`` where each query token's key and value are
    stored."""


@attrs.frozen(eq=False)
class AttentionInputs:
    """Full, sliding and chunked attention: ``query [T, heads, dim]``, ``key`` and ``value [T,
    kv_heads, dim]``."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


class AttentionKernel(Protocol):
    """What a backend builds for one group."""

    def layouts(self, spec: KVSpec) -> tuple[KVLayout, ...]:
        """Storage layouts it can use, the preferred first."""
        ...

    def plan(self, step: AttentionStep) -> Any:
        """Metadata of one step, handed back to every `forward` of the step."""
        ...

    def forward(
        self, layer: AttentionLayer, inputs: AttentionInputs, kv: KVTensors, metadata: Any
    ) -> torch.Tensor:
        """Store the new keys and values, attend; ``[T, heads, dim]`` in the dtype of the query."""
        ...
