"""The family's configuration, whatever file it came from. No torch."""

from __future__ import annotations

from typing import Any

import attrs

from pegboard.api.model import ModelFacts
from pegboard.errors import UnsupportedError
from pegboard.nn import RopeConfig, attention_size, decoder_facts, window_slots

__all__ = ["GENERATIONS", "GemmaConfig", "Generation", "make_config", "pattern_layers"]

SLOT = "attention"


@attrs.frozen
class Generation:
    """What one generation of the family has, and what its files mean where they say nothing."""

    pattern: int = 0
    """Every so manieth layer has full attention, the others a sliding window; 0: no windows."""
    after_norms: bool = False
    """Norms after attention and MLP too."""
    qk_norm: bool = False
    two_ropes: bool = False
    """Layers with a window have a rope of their own."""
    attention_cap: float | None = None
    logit_cap: float | None = None


GENERATIONS = {
    "gemma": Generation(),
    "gemma2": Generation(pattern=2, after_norms=True, attention_cap=50.0, logit_cap=30.0),
    "gemma3": Generation(pattern=6, after_norms=True, qk_norm=True, two_ropes=True),
}


@attrs.frozen(kw_only=True)
class GemmaConfig:
    """Sizes and switches of one model."""

    facts: ModelFacts
    generation: Generation
    layers: int
    hidden_size: int
    inner_size: int
    heads: int
    kv_heads: int
    head_size: int
    vocab_size: int
    max_positions: int
    norm_eps: float
    scale: float
    """Of the attention scores."""
    local: tuple[bool, ...]
    """Per layer: it is one of those with a window."""
    window: int | None
    """Tokens that such a layer attends to, the query's own included; None: all."""
    rope: RopeConfig
    local_rope: RopeConfig
    """Of the layers with a window."""
    attention_cap: float | None
    logit_cap: float | None
    bias: bool = False
    """On the four products of attention."""
    tied: bool = True
    """The output head uses the embedding's weights."""

    def slot_key(self, layer: int) -> str:
        """Key of the cache slot of `layer`."""
        return self.facts.kv_slots[layer].key


def pattern_layers(layers: int, pattern: int) -> tuple[bool, ...]:
    """Which layers have a window if every `pattern`-th one has full attention."""
    return tuple(pattern > 0 and (layer + 1) % pattern > 0 for layer in range(layers))


def make_config(*, facts: dict[str, Any], **values: Any) -> GemmaConfig:
    """Check what depends on several keys, and state the neutral facts."""
    kv_heads, size = values["kv_heads"], values["head_size"]
    attention_size(values["hidden_size"], values["heads"], kv_heads, size)  # for its checks
    if values["rope"].partial != 1 or values["local_rope"].partial != 1:
        raise UnsupportedError("partial_rotary_factor other than 1 is not supported yet")
    windows = [values["window"] if local else None for local in values["local"]]
    slots = window_slots(SLOT, kv_heads, size, windows)
    features = frozenset({"soft_cap"} if values["attention_cap"] else ())
    neutral = decoder_facts(values, slots, attention_features=features, **facts)
    return GemmaConfig(facts=neutral, **values)
