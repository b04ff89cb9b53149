"""Surface *attention*: kernels over the paged KV cache, those of recurrent layers included.

Called by: the runner, in the process that holds the device. `plan` once per step and group, then
`forward` once per layer with what `plan` returned. A backend may not keep state between steps
other than scratch memory.

What a kernel is given depends on the kind of its group:

=======================  ====================  ===================  =============================
kinds                    step                  layer                inputs
=======================  ====================  ===================  =============================
full, sliding, chunked   `AttentionStep`       `AttentionLayer`     `AttentionInputs`
encoder-only             `AttentionStep`       `AttentionLayer`     `AttentionInputs`
latent                   `AttentionStep`       `AttentionLayer`     `LatentInputs`
cross                    `AttentionStep`       `AttentionLayer`     `CrossInputs`
recurrent                `RecurrentStep`       of the mixer         of the mixer
=======================  ====================  ===================  =============================

The last row is in `pegboard.api.recurrent`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import attrs

from pegboard.api.descriptor import LazyRef, lazy_ref
from pegboard.api.metrics import PluginMetrics
from pegboard.errors import PluginError

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
    "CrossInputs",
    "LatentInputs",
    "PromptsKernel",
    "WarmingKernel",
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
    ``batch_invariant``, ``state_borders``."""
    mixers: tuple[str, ...] = ()
    """Of the kind ``recurrent``: which recurrences, see `pegboard.api.recurrent`."""
    capture: Literal["whole", "piecewise", "none"] = "none"
    """Into which kind of device graph its calls may be recorded."""
    fused_kv_write: bool = True
    """`forward` writes the new keys and values itself. If False they are in the cache already when
    it is called: the core stored them, joined with their rotation where a platform has the op."""
    rows: Literal["all", "prompts"] = "all"
    """``prompts``: it serves only rows with several query tokens, in steps that are not captured.
    The core gives it a step of those rows alone, and the others to the best backend that serves
    all; neither may write the cache itself then (`fused_kv_write` is False). Its kernel is a
    `PromptsKernel`."""
    warms_up: bool = False
    """Its kernel is a `WarmingKernel`."""
    priority: int = 0

    def __attrs_post_init__(self) -> None:
        if self.rows == "prompts" and self.fused_kv_write:
            raise PluginError(
                f"attention backend {self.name!r}: rows='prompts' needs fused_kv_write=False, "
                "for the other rows of a group are served by another backend"
            )

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
    settings: Any = None
    """The plugin's own, see `pegboard.api.hooks.Hooks.pegboard_settings`."""
    metrics: PluginMetrics = attrs.field(factory=PluginMetrics, eq=False, repr=False)
    """The plugin's own namespace of metrics."""


@attrs.frozen(eq=False)
class AttentionLayer:
    """Constants of one layer. Tensors are on the device; a weight update writes into them."""

    heads: int
    kv_heads: int
    head_size: int
    scale: float
    """Multiplies the scores."""
    soft_cap: float | None = None
    """Scaled scores s become ``soft_cap * tanh(s / soft_cap)`` before they are masked. Only layers
    of models that declare the feature ``soft_cap`` have one."""
    sinks: torch.Tensor | None = None
    """``[heads]``: a score per head that takes part in every softmax and has no value. Only layers
    of models that declare the feature ``sinks`` have them."""
    k_scale: torch.Tensor | None = None
    """float32 ``[]``: what the keys in a cache of 8-bit floats are multiples of. A cache of another
    dtype holds keys as they are, whatever stands here. None: 1."""
    v_scale: torch.Tensor | None = None
    """The same of values."""


@attrs.frozen(eq=False)
class AttentionStep:
    """The rows of one step as one group sees them: R requests, T query tokens in request order.

    Row r has ``query_lens[r]`` query tokens, the last of ``kv_lens[r]`` tokens known after this
    step; its tokens lie in
    ``block_table[r, : ceil(kv_lens[r] / block_size)]``. Host lists and tensors hold the same
    values.

    In a group of cross-attention, `kv_lens` counts the encoder's tokens, of which every query sees
    all, and `slots` are the places of the encoder's tokens of those rows whose request begins in
    this step, row after row: the others stored theirs already.

    A step that is `captured` is recorded into a device graph and replayed with other values in
    the same tensors, so nothing may follow from host values but shapes: `query_lens` are all 1,
    `kv_lens` the largest values that a replay can have, `block_lists` is empty, and `plan` runs
    device work only. Rows without a request have a length of 0 in `kv_lens_device` and -1 in
    `slots`; their result is never read. Only backends that declare ``capture="whole"`` meet one.

    Of a group whose kind gives up old tokens (sliding, chunked) only the entries count that some
    query token of the step attends to. What stands in earlier ones is the null block or the id of
    a block that belongs to another request by now: it must not be read.
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
    stored; -1 for nowhere."""
    captured: bool = False
    common_prefix: int = 0
    """Leading tokens that all rows have in the same blocks, none of them a query token: a multiple
    of the block size, and perhaps fewer than there are. Of a captured step, the most that a replay
    can have."""
    common_prefix_device: torch.Tensor | None = None
    """int32 [1], the same on the device; None where there is never any."""


@attrs.frozen(eq=False)
class AttentionInputs:
    """Full, sliding and chunked attention: ``query [T, heads, dim]``, ``key`` and ``value [T,
    kv_heads, dim]``."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


@attrs.frozen(eq=False)
class LatentInputs:
    """Latent attention with absorbed weights: scores are products of ``query [T, heads, width]``
    with ``latent [T, width]``, which is stored; the result is the weighted sum of latent vectors,
    ``[T, heads, width]``."""

    query: torch.Tensor
    latent: torch.Tensor


@attrs.frozen(eq=False)
class CrossInputs:
    """Cross-attention: ``query [T, heads, dim]``, and keys and values of the encoder's tokens that
    are to be stored, ``[tokens, kv_heads, dim]``; None in a step in which no request begins."""

    query: torch.Tensor
    key: torch.Tensor | None = None
    value: torch.Tensor | None = None


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
