"""Surface *model family*: one way of wiring blocks into a model, and how checkpoints name its
parts.

Called by: the engine at start-up. `config` runs in the front end and in the engine (no torch
there), `weights` and
`build` in the process that holds the device. A family knows nothing of scheduling, paging, devices
or file formats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from pegboard.api.descriptor import LazyRef, lazy_ref
from pegboard.api.metrics import PluginMetrics

if TYPE_CHECKING:
    import torch

    from pegboard.api.attention import AttentionKernel
    from pegboard.api.kv import KVSlot, KVTensors
    from pegboard.api.platform import Communication
    from pegboard.api.quant import LayerMethod, LayerSpec, SourceTensor

__all__ = [
    "Abilities",
    "Batch",
    "BuildContext",
    "ConfigInput",
    "FamilyConfig",
    "GroupBatch",
    "LanguageModel",
    "ModelFacts",
    "ModelFamily",
    "Parallel",
    "RowOrder",
    "Skip",
    "WeightMap",
    "WeightRule",
]


@attrs.frozen
class Abilities:
    """What a family can do beyond plain generation. The core selects by it and says why it
    refused."""

    tensor_parallel: bool = False
    pipeline_parallel: bool = False
    adapters: tuple[str, ...] = ()
    """Module names that take adapters."""
    pooling: tuple[str, ...] = ()
    modalities: tuple[str, ...] = ("text",)


@attrs.frozen
class ModelFamily:
    """Descriptor.

    `config`: ``(source: ConfigInput) -> FamilyConfig``. `weights`: ``(config, kind: str) ->
    WeightMap``. `build`:
    ``(ctx: BuildContext) -> LanguageModel``.
    """

    name: str
    architectures: Mapping[str, tuple[str, ...]]
    """Names by kind of checkpoint: ``{"hf": ("LlamaForCausalLM",), "gguf": ("llama",)}``."""
    config: LazyRef = attrs.field(converter=lazy_ref)
    weights: LazyRef = attrs.field(converter=lazy_ref)
    build: LazyRef = attrs.field(converter=lazy_ref)
    abilities: Abilities = Abilities()

    def claims(self) -> tuple[str, ...]:
        """``"<kind>:<architecture>"`` for each architecture."""
        return tuple(
            f"{kind}:{name}" for kind, names in self.architectures.items() for name in names
        )


@attrs.frozen
class ConfigInput:
    """What a family reads its configuration from."""

    raw: Mapping[str, Any]
    kind: str
    architecture: str
    tensor_names: frozenset[str] = frozenset()
    """For formats that say some things only by the presence of a tensor."""
    tensor_shapes: Mapping[str, tuple[int, ...]] = attrs.field(factory=dict)
    """Logical shapes by name, where the source has them; for sizes that old files state nowhere
    else."""
    settings: Any = None
    """The family's own, see `pegboard.api.hooks.Hooks.pegboard_settings`."""


@attrs.frozen
class ModelFacts:
    """The neutral facts that the core needs of any model."""

    layers: int
    hidden_size: int
    vocab_size: int
    max_positions: int
    """Longest sequence the model was made for, in tokens."""
    kv_slots: tuple[KVSlot, ...]
    """Specifications with the dtype ``"auto"`` resolved by the core to the cache dtype."""
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    stored_dtype: str = "float32"
    """Dtype that the checkpoint names, by torch name; used for ``dtype="auto"``."""
    position_limit: tuple[int, str] | None = None
    """``(tokens, reason)``: a longer context would need a feature that is not built. A
    `max_model_len` above it is refused with the reason."""
    attention_features: frozenset[str] = frozenset()
    """Of `AttentionBackend.features`, those that some layer needs."""


class FamilyConfig(Protocol):
    """A family's own frozen configuration. Every raw key was checked while it was made."""

    @property
    def facts(self) -> ModelFacts: ...


class RowOrder(Protocol):
    """A permutation of a weight's rows, as data."""

    def index(self, rows: int) -> Sequence[int]:
        """``result[i]`` is the stored row that becomes row i."""
        ...


@attrs.frozen
class WeightRule:
    """Stored tensors ``<source>.<suffix>`` fill part `part` of module `target`.

    ``{i}`` stands for a layer number in both names, ``{e}`` in the source for the number of an
    expert. Suffixes (``weight``, ``bias``, scales) are those that the module and its quantisation
    method declare.
    """

    source: str
    target: str
    part: int = 0
    row_order: RowOrder | None = None
    offset: float = 0.0
    """Added to every element, in the dtype that the module declares: for norms whose weights are
    stored as their distance from 1."""
    experts: int = 0
    """How many experts ``{e}`` counts: each has a tensor of its own, which goes to its place in a
    stack (`ParamSpec.stacked`). 0: the source has no ``{e}``."""


@attrs.frozen
class Skip:
    """Stored tensors whose name matches `pattern` (shell style) are not loaded, for this reason."""

    pattern: str
    reason: str


@attrs.frozen
class WeightMap:
    """How one kind of checkpoint names the parts of a model. Every tensor of the file is in a rule
    or a skip."""

    rules: tuple[WeightRule, ...]
    skips: tuple[Skip, ...] = ()


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
