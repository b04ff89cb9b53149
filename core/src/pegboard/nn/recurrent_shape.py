"""Sizes of a recurrent block, and the state that follows from them. Importable without torch."""

from __future__ import annotations

from typing import Any

import attrs

from pegboard.api.kv import RecurrentSpec, StateTensor
from pegboard.api.recurrent import GATED_LINEAR
from pegboard.errors import ConfigError

__all__ = ["RecurrentShape"]


def _at_least(least: int) -> Any:
    def check(_: Any, field: attrs.Attribute[int], value: int) -> None:
        if value < least:
            raise ConfigError(f"{field.name}={value!r} is not allowed: at least {least}")

    return check


@attrs.frozen
class RecurrentShape:
    """Sizes of one `RecurrentBlock`, over all ranks. `ConfigError` names one that is too small."""

    hidden_size: int = attrs.field(validator=_at_least(1))
    heads: int = attrs.field(validator=_at_least(1))
    key_size: int = attrs.field(validator=_at_least(1))
    value_size: int = attrs.field(validator=_at_least(1))
    conv_width: int = attrs.field(default=4, validator=_at_least(2))
    """Taps of the convolution, its own token included."""

    @property
    def parts(self) -> tuple[int, int, int]:
        """Widths of queries, keys and values, over all heads."""
        keys = self.heads * self.key_size
        return keys, keys, self.heads * self.value_size

    def spec(self) -> RecurrentSpec:
        """What the block keeps of a request: the last inputs of the convolution, in the dtype of
        the cache, and the sum of products of keys and values, in float32."""
        conv = (self.conv_width - 1, sum(self.parts))
        memory = (self.heads, self.key_size, self.value_size)
        states = StateTensor("conv", conv, "auto"), StateTensor("memory", memory, "float32")
        return RecurrentSpec(states, mixer=GATED_LINEAR)
