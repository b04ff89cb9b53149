"""The family's configuration, whatever file it came from. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from pegboard.api.model import ModelFacts
from pegboard.nn import RopeConfig, attention_size, decoder_facts, window_slots

__all__ = ["LlamaConfig", "make_config"]

SLOT = "attention"


@attrs.frozen(kw_only=True)
class LlamaConfig:
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
    rope_factors: bool = False
    """The checkpoint holds a divisor for each rope frequency."""
    qkv_bias: bool = False
    output_bias: bool = False
    """On the product after attention."""
    mlp_bias: bool = False
    tied: bool = False
    """The output head uses the embedding's weights."""

    def slot_key(self, layer: int) -> str:
        """Key of the cache slot of `layer`."""
        return self.facts.kv_slots[layer].key


def make_config(
    *,
    facts: dict[str, Any],
    head_size: int | None,
    windows: Sequence[int | None],
    **values: Any,
) -> LlamaConfig:
    """Check what depends on several keys, derive what was left out.

    `windows` has, per layer, the tokens that a query attends to, itself included; None: all.
    """
    kv_heads = values["kv_heads"]
    size = attention_size(values["hidden_size"], values["heads"], kv_heads, head_size)
    slots = window_slots(SLOT, kv_heads, size, windows)
    return LlamaConfig(facts=decoder_facts(values, slots, **facts), head_size=size, **values)
