"""Surface *model family*: one way of wiring blocks into a model, and how checkpoints name its
parts.

Called by: the engine at start-up. `config` runs in the front end and in the engine (no torch
there), `weights` and
`build` in the process that holds the device. A family knows nothing of scheduling, paging, devices
or file formats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from pegboard.api._parts import late_exports
from pegboard.api.descriptor import LazyRef, lazy_ref

if TYPE_CHECKING:
    from pegboard.api.model_build import Batch, BuildContext, GroupBatch, LanguageModel, Parallel
    from pegboard.api.model_config import ConfigInput, FamilyConfig, ModelFacts
    from pegboard.api.model_weights import RowOrder, Skip, WeightMap, WeightRule

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

if not TYPE_CHECKING:
    __getattr__ = late_exports(__name__, __all__, "model_config", "model_weights", "model_build")


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
