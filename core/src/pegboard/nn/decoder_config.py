"""What decoder families derive from several keys of a configuration. Importable without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pegboard.api.kv import FullAttentionSpec, KVSlot, KVSpec, SlidingWindowSpec
from pegboard.api.model import ModelFacts
from pegboard.errors import ConfigError

__all__ = ["attention_size", "decoder_facts", "window_slots"]

_NEUTRAL = ("layers", "hidden_size", "vocab_size", "max_positions")


def attention_size(
    hidden_size: int, heads: int, kv_heads: int, head_size: int | None = None
) -> int:
    """Numbers per attention head: `head_size`, or where that is None the hidden size shared out.

    All are at least 1. Raises `ConfigError` if the heads cannot share the hidden size or the
    key-value heads, or if a head cannot be rotated in pairs.
    """
    if head_size is None and hidden_size % heads:
        raise ConfigError(
            f"hidden size {hidden_size} is not a multiple of the {heads} attention heads"
        )
    size = hidden_size // heads if head_size is None else head_size
    if heads % kv_heads:
        raise ConfigError(
            f"{heads} attention heads are not a multiple of {kv_heads} key-value heads"
        )
    if size % 2:
        raise ConfigError(f"head size {size} is odd, so it cannot be rotated in pairs")
    return size


def window_slots(
    name: str, kv_heads: int, head_size: int, windows: Sequence[int | None]
) -> tuple[KVSlot, ...]:
    """One cache slot per layer, called `name`, in the dtype of the cache.

    `windows` has, per layer, the tokens that a query attends to, itself included; None: all.
    """

    def spec(window: int | None) -> KVSpec:
        if window is None:
            return FullAttentionSpec(kv_heads, head_size, "auto")
        return SlidingWindowSpec(kv_heads, head_size, "auto", window=window)

    return tuple(KVSlot(layer, name, spec(window)) for layer, window in enumerate(windows))


def decoder_facts(
    values: Mapping[str, Any], kv_slots: tuple[KVSlot, ...], **more: Any
) -> ModelFacts:
    """The neutral facts of a family's configuration.

    Of `values`, its fields by name, `layers`, `hidden_size`, `vocab_size` and `max_positions` are
    taken and must be there; `more` has further fields of `ModelFacts`.
    """
    return ModelFacts(kv_slots=kv_slots, **{name: values[name] for name in _NEUTRAL}, **more)
