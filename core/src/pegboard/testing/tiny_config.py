"""Configuration and tensor names of the ``tiny`` family."""

from __future__ import annotations

from typing import Any

import attrs

from pegboard.api.kv import FullAttentionSpec, KVSlot
from pegboard.api.model import ConfigInput, ModelFacts, WeightMap, WeightRule
from pegboard.errors import ConfigError

__all__ = ["TinyConfig", "read_tiny", "tiny_weights"]


@attrs.frozen(kw_only=True)
class TinyConfig:
    """A decoder with grouped-query attention and a gated MLP, small enough to write by hand."""

    layers: int = 2
    hidden: int = 32
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 8
    intermediate: int = 48
    vocab_size: int = 300
    max_positions: int = 4096
    eos_token_ids: tuple[int, ...] = attrs.field(default=(1,), converter=tuple)

    @property
    def facts(self) -> ModelFacts:
        spec = FullAttentionSpec(kv_heads=self.kv_heads, head_size=self.head_size, dtype="auto")
        return ModelFacts(
            layers=self.layers,
            hidden_size=self.hidden,
            vocab_size=self.vocab_size,
            max_positions=self.max_positions,
            kv_slots=tuple(KVSlot(layer, "self", spec) for layer in range(self.layers)),
            eos_token_ids=self.eos_token_ids,
        )


def read_tiny(source: ConfigInput) -> TinyConfig:
    """Read ``config.json``; unknown keys are refused."""
    raw: dict[str, Any] = {k: v for k, v in source.raw.items() if k != "architectures"}
    known = {field.name for field in attrs.fields(TinyConfig)}
    for key in raw:
        if key not in known:
            raise ConfigError(f"config.json: key {key!r} is not one of {', '.join(sorted(known))}")
    return TinyConfig(**raw)


def tiny_weights(config: TinyConfig, kind: str) -> WeightMap:
    """Names in the file are those of the model's own tree, projections apart."""
    layer = "layers.{i}"
    parts = (("attn.qkv", ("q", "k", "v")), ("mlp.gate_up", ("gate", "up")))
    stacks = tuple(
        WeightRule(f"{layer}.{target.split('.')[0]}.{name}", f"{layer}.{target}", part)
        for target, names in parts
        for part, name in enumerate(names)
    )
    same = (
        "embed",
        "norm",
        "head",
        *(f"{layer}.{n}" for n in ("attn_norm", "mlp_norm", "attn.out", "mlp.down")),
    )
    return WeightMap(rules=(*stacks, *(WeightRule(name, name) for name in same)))
