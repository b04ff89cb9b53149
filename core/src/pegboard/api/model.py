"""Surface *model family*: one way of wiring blocks into a model, and how checkpoints name its
parts.

Called by: the engine at start-up. `config` runs in the front end and in the engine (no torch
there), `weights` and
`build` in the process that holds the device. A family knows nothing of scheduling, paging, devices
or file formats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from pegboard.api.descriptor import LazyRef, lazy_ref
from pegboard.api.model_build import Batch, BuildContext, GroupBatch, LanguageModel, Parallel
from pegboard.api.model_weights import RowOrder, Skip, WeightMap, WeightRule

if TYPE_CHECKING:
    from pegboard.api.kv import KVSlot

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
