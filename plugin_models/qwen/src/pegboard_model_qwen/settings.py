"""The family's configuration, whatever file it came from. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from pegboard.api.kv import FullAttentionSpec, KVSlot, KVSpec, SlidingWindowSpec
from pegboard.api.model import ModelFacts
from pegboard.errors import ConfigError
from pegboard.nn import RopeConfig

__all__ = ["Mixture", "QwenConfig", "make_config"]

SLOT = "attention"


@attrs.frozen(kw_only=True)
class Mixture:
    """The experts of each layer that has some."""

    experts: int
    top_k: int
    """Experts that each token is sent to."""
    inner_size: int
    """Of one expert."""
    renormalise: bool
    """The weights of the chosen experts are made to sum to 1."""
    shared_size: int = 0
    """Inner size of an expert that every token passes; 0: there is none."""

    def __attrs_post_init__(self) -> None:
        if self.top_k > self.experts:
            raise ConfigError(
                f"{self.top_k} experts per token are not allowed: there are {self.experts}"
            )


@attrs.frozen(kw_only=True)
class QwenConfig:
    """Sizes and switches of one model."""

    facts: ModelFacts
    layers: int
    hidden_size: int
    inner_size: int
    heads: int
    kv_heads: int
    head_size: int
    vocab_size: int
    max_positions: int
    norm_eps: float
    rope: RopeConfig
    qk_norm: bool
    """Each head of queries and keys is normed before it is rotated."""
    qkv_bias: bool = False
    output_bias: bool = False
    """On the product after attention."""
    tied: bool = False
    """The output head uses the embedding's weights."""
    mixture: Mixture | None = None
    sparse: tuple[bool, ...]
    """Per layer: it has a mixture of experts in the place of its MLP."""

    def slot_key(self, layer: int) -> str:
        """Key of the cache slot of `layer`."""
        return self.facts.kv_slots[layer].key


def make_config(
    *,
    facts: dict[str, Any],
    head_size: int | None,
    windows: Sequence[int | None],
    **values: Any,
) -> QwenConfig:
    """Check what depends on several keys, derive what was left out.

    `windows` has, per layer, the tokens that a query attends to, itself included; None: all.
    """
    hidden, heads, kv_heads = values["hidden_size"], values["heads"], values["kv_heads"]
    if head_size is None and hidden % heads:
        raise ConfigError(f"hidden size {hidden} is not a multiple of the {heads} attention heads")
    size = head_size or hidden // heads
    if heads % kv_heads:
        raise ConfigError(
            f"{heads} attention heads are not a multiple of {kv_heads} key-value heads"
        )
    if size % 2:
        raise ConfigError(f"head size {size} is odd, so it cannot be rotated in pairs")
    neutral = ModelFacts(
        layers=values["layers"],
        hidden_size=hidden,
        vocab_size=values["vocab_size"],
        max_positions=values["max_positions"],
        kv_slots=tuple(
            KVSlot(layer, SLOT, _spec(kv_heads, size, window))
            for layer, window in enumerate(windows)
        ),
        **facts,
    )
    return QwenConfig(facts=neutral, head_size=size, **values)


def _spec(kv_heads: int, head_size: int, window: int | None) -> KVSpec:
    if window is None:
        return FullAttentionSpec(kv_heads, head_size, "auto")
    return SlidingWindowSpec(kv_heads, head_size, "auto", window=window)
