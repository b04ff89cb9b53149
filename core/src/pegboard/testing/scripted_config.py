"""Configuration of the ``scripted`` family: a model that says exactly what a test wants."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from pegboard.api.kv import FullAttentionSpec, KVSlot
from pegboard.api.model import ConfigInput, ModelFacts, WeightMap, WeightRule
from pegboard.errors import ConfigError

__all__ = ["ScriptedConfig", "read_scripted", "scripted_weights"]


def _integers(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(values)


@attrs.frozen(kw_only=True)
class ScriptedConfig:
    """The token after position ``offset + i`` is ``script[i]``; after the script comes the first
    end id, for ever.

    With a prompt of p tokens and ``offset = p - 1`` the output is the script.
    """

    script: tuple[int, ...] = attrs.field(converter=_integers)
    offset: int
    vocab_size: int
    max_positions: int = 4096
    eos_token_ids: tuple[int, ...] = attrs.field(default=(1,), converter=tuple)
    strength: float = 20.0
    """Logit of the scripted token; all others have 0."""

    @property
    def facts(self) -> ModelFacts:
        spec = FullAttentionSpec(kv_heads=1, head_size=8, dtype="auto")
        return ModelFacts(
            layers=1,
            hidden_size=8,
            vocab_size=self.vocab_size,
            max_positions=self.max_positions,
            kv_slots=(KVSlot(0, "self", spec),),
            eos_token_ids=self.eos_token_ids,
        )


def read_scripted(source: ConfigInput) -> ScriptedConfig:
    """Read ``config.json``; unknown keys are refused."""
    raw: dict[str, Any] = {k: v for k, v in source.raw.items() if k != "architectures"}
    known = {field.name for field in attrs.fields(ScriptedConfig)}
    for key in raw:
        if key not in known:
            raise ConfigError(f"config.json: key {key!r} is not one of {', '.join(sorted(known))}")
    return ScriptedConfig(**raw)


def scripted_weights(config: ScriptedConfig, kind: str) -> WeightMap:
    """One embedding, so that the file is a real one."""
    return WeightMap(rules=(WeightRule("embed", "embed"),))
