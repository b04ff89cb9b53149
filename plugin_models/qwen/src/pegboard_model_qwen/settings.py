"""The family's configuration, whatever file it came from. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from pegboard.api.model import ModelFacts
from pegboard.errors import ConfigError
from pegboard.nn import RopeConfig, attention_size, decoder_facts, window_slots

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
    kv_heads = values["kv_heads"]
    size = attention_size(values["hidden_size"], values["heads"], kv_heads, head_size)
    slots = window_slots(SLOT, kv_heads, size, windows)
    return QwenConfig(facts=decoder_facts(values, slots, **facts), head_size=size, **values)
