"""The family's configuration, whatever file it came from. No torch."""

from __future__ import annotations

from typing import Any

import attrs

from pegboard.api.kv import FullAttentionSpec, KVSlot, KVSpec, SlidingWindowSpec
from pegboard.api.model import ModelFacts
from pegboard.errors import ConfigError, UnsupportedError
from pegboard.nn import RopeConfig

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
    heads, kv_heads, size = values["heads"], values["kv_heads"], values["head_size"]
    if heads % kv_heads:
        raise ConfigError(
            f"{heads} attention heads are not a multiple of {kv_heads} key-value heads"
        )
    if size % 2:
        raise ConfigError(f"head size {size} is odd, so it cannot be rotated in pairs")
    if values["rope"].partial != 1 or values["local_rope"].partial != 1:
        raise UnsupportedError("partial_rotary_factor other than 1 is not supported yet")
    full: KVSpec = FullAttentionSpec(kv_heads, size, "auto")
    window = values["window"]
    sliding = SlidingWindowSpec(kv_heads, size, "auto", window=window) if window else full
    neutral = ModelFacts(
        layers=values["layers"],
        hidden_size=values["hidden_size"],
        vocab_size=values["vocab_size"],
        max_positions=values["max_positions"],
        kv_slots=tuple(
            KVSlot(layer, SLOT, sliding if local else full)
            for layer, local in enumerate(values["local"])
        ),
        attention_features=frozenset({"soft_cap"} if values["attention_cap"] else ()),
        **facts,
    )
    return GemmaConfig(facts=neutral, **values)
