"""Configuration and tensor names of the ``tiny-hybrid`` family: layers that attend, and layers
that carry a state, in any order."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs

from pegboard.api.kv import FullAttentionSpec, KVSlot
from pegboard.api.model import ConfigInput, ModelFacts, WeightMap, WeightRule
from pegboard.errors import ConfigError
from pegboard.nn import RecurrentShape

__all__ = ["HybridConfig", "hybrid_shapes", "hybrid_weights", "read_hybrid"]

KINDS = ("full", "recurrent")


def _kinds(_: Any, field: attrs.Attribute[tuple[str, ...]], value: tuple[str, ...]) -> None:
    for kind in value:
        if kind not in KINDS:
            raise ConfigError(f"{field.name}={value!r} is not allowed: each of {', '.join(KINDS)}")


@attrs.frozen(kw_only=True)
class HybridConfig:
    """A decoder whose layers are of the kinds `layer_kinds`, small enough to write by hand."""

    layer_kinds: tuple[str, ...] = attrs.field(
        default=("recurrent", "full", "recurrent"), converter=tuple, validator=_kinds
    )
    hidden: int = 32
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 8
    state_heads: int = 2
    key_size: int = 8
    value_size: int = 8
    conv_width: int = 4
    intermediate: int = 48
    vocab_size: int = 300
    max_positions: int = 4096
    eos_token_ids: tuple[int, ...] = attrs.field(default=(1,), converter=tuple)

    @property
    def shape(self) -> RecurrentShape:
        """Of the recurrent layers."""
        return RecurrentShape(
            self.hidden, self.state_heads, self.key_size, self.value_size, self.conv_width
        )

    @property
    def facts(self) -> ModelFacts:
        full = FullAttentionSpec(kv_heads=self.kv_heads, head_size=self.head_size, dtype="auto")
        state = self.shape.spec()
        return ModelFacts(
            layers=len(self.layer_kinds),
            hidden_size=self.hidden,
            vocab_size=self.vocab_size,
            max_positions=self.max_positions,
            kv_slots=tuple(
                KVSlot(i, "self", full) if kind == "full" else KVSlot(i, "state", state)
                for i, kind in enumerate(self.layer_kinds)
            ),
            eos_token_ids=self.eos_token_ids,
        )


def read_hybrid(source: ConfigInput) -> HybridConfig:
    """Read ``config.json``; unknown keys are refused."""
    raw: dict[str, Any] = {k: v for k, v in source.raw.items() if k != "architectures"}
    known = {field.name for field in attrs.fields(HybridConfig)}
    for key in raw:
        if key not in known:
            raise ConfigError(f"config.json: key {key!r} is not one of {', '.join(sorted(known))}")
    return HybridConfig(**raw)


_STACKS: Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]] = MappingProxyType(
    {
        "full": (("attn.qkv", ("attn.q", "attn.k", "attn.v")), ("attn.out", ("attn.out",))),
        "recurrent": (
            ("state.mix", ("state.q", "state.k", "state.v")),
            *((name, (name,)) for name in ("state.decay", "state.conv", "state.norm", "state.out")),
        ),
    }
)
_COMMON = (
    ("mlp.gate_up", ("mlp.gate", "mlp.up")),
    *((name, (name,)) for name in ("mixer_norm", "mlp_norm", "mlp.down")),
)


def hybrid_weights(config: HybridConfig, kind: str) -> WeightMap:
    """Names in the file are those of the model's own tree, projections apart."""
    rules = [WeightRule(name, name) for name in ("embed", "norm", "head")]
    for number, layer_kind in enumerate(config.layer_kinds):
        for target, parts in (*_STACKS[layer_kind], *_COMMON):
            rules += [
                WeightRule(f"layers.{number}.{name}", f"layers.{number}.{target}", part)
                for part, name in enumerate(parts)
            ]
    return WeightMap(rules=tuple(rules))


def hybrid_shapes(config: HybridConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors of a checkpoint, by name."""
    hidden, vocab = config.hidden, config.vocab_size
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (vocab, hidden)}
    for number, kind in enumerate(config.layer_kinds):
        own = _attention_shapes(config) if kind == "full" else _state_shapes(config)
        common = {
            "mixer_norm.weight": (hidden,),
            "mlp_norm.weight": (hidden,),
            "mlp.gate.weight": (config.intermediate, hidden),
            "mlp.up.weight": (config.intermediate, hidden),
            "mlp.down.weight": (hidden, config.intermediate),
        }
        shapes |= {f"layers.{number}.{name}": size for name, size in (own | common).items()}
    return shapes | {"norm.weight": (hidden,), "head.weight": (vocab, hidden)}


def _attention_shapes(config: HybridConfig) -> dict[str, tuple[int, ...]]:
    query, shared = config.heads * config.head_size, config.kv_heads * config.head_size
    return {
        "attn.q.weight": (query, config.hidden),
        "attn.k.weight": (shared, config.hidden),
        "attn.v.weight": (shared, config.hidden),
        "attn.out.weight": (config.hidden, query),
    }


def _state_shapes(config: HybridConfig) -> dict[str, tuple[int, ...]]:
    shape = config.shape
    rows = zip("qkv", shape.parts, strict=True)
    return {f"state.{name}.weight": (size, config.hidden) for name, size in rows} | {
        "state.decay.weight": (shape.heads, config.hidden),
        "state.decay.bias": (shape.heads,),
        "state.conv.weight": (sum(shape.parts), shape.conv_width),
        "state.norm.weight": (shape.value_size,),
        "state.out.weight": (config.hidden, shape.parts[2]),
    }
