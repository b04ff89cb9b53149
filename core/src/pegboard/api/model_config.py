"""What a family reads, and what it tells the core of a model. Part of `pegboard.api.model`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import attrs

if TYPE_CHECKING:
    from pegboard.api.kv import KVSlot


__all__ = ["ConfigInput", "FamilyConfig", "ModelFacts"]


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
