"""Settings of rotary position embeddings, in all the forms that ``config.json`` has had. Importable
without torch.

The old form is ``rope_theta`` beside ``rope_scaling`` (whose kind is under ``rope_type`` or, older
still, ``type``). The new form is ``rope_parameters`` with everything inside; where layers of
several types differ it nests one mapping per layer type. A kind or a key that is not understood is
an error, never a silent default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from pegboard.errors import ConfigError, UnsupportedError
from pegboard.nn.config import ConfigReader

__all__ = ["RopeConfig", "read_rope"]

_KINDS = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "high_freq_factor",
        "low_freq_factor",
        "original_max_position_embeddings",
    ),
}
_NOT_BUILT = ("dynamic", "longrope", "mrope", "ntk", "su", "yarn")
_SHARED_KEYS = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
_LAYER_TYPES = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention")


@attrs.frozen
class RopeConfig:
    """How rotation frequencies come about. Fields that `kind` does not use keep their defaults."""

    theta: float = 10_000.0
    """Base of the geometric series of frequencies."""
    kind: str = "default"
    """``default``, ``linear`` or ``llama3``."""
    factor: float = 1.0
    """By how much the context was stretched."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 0
    """Context before stretching, in tokens."""
    partial: float = 1.0
    """Share of each head's features that is rotated."""


def read_rope(
    raw: Mapping[str, Any],
    *,
    default_theta: float = 10_000.0,
    layer_type: str = "full_attention",
    source: str = "config.json",
) -> RopeConfig:
    """The settings of layers of type `layer_type`.

    Raises `ConfigError` for a kind that does not exist, a key that is unknown, missing or out of
    range, or two forms that disagree; `UnsupportedError` for a kind that is not built yet.
    """
    table = _flat_form(raw, layer_type, source)
    theta = table.get("rope_theta")
    outer_theta = raw.get("rope_theta")
    table["rope_theta"] = outer_theta if theta is None else theta
    if table["rope_theta"] is None:
        table["rope_theta"] = default_theta
    if table.get("partial_rotary_factor") is None:
        table["partial_rotary_factor"] = raw.get("partial_rotary_factor")
    return _build(table, _kind(table, source), source)


def _flat_form(raw: Mapping[str, Any], layer_type: str, source: str) -> dict[str, Any]:
    """The one mapping that counts, a copy; empty if there is none."""
    forms = {key: raw.get(key) for key in ("rope_parameters", "rope_scaling")}
    given = {key: value for key, value in forms.items() if value is not None}
    for key, value in given.items():
        if not isinstance(value, Mapping):
            raise ConfigError(f"{source}: {key}={value!r} is not allowed: a mapping or null")
    if len(given) == 2 and given["rope_parameters"] != given["rope_scaling"]:
        raise ConfigError(f"{source}: rope_parameters and rope_scaling disagree: {given}")
    table = dict(next(iter(given.values()), {}))
    nested = [key for key in table if key in _LAYER_TYPES]
    if not nested:
        return table
    if len(nested) != len(table) or layer_type not in table:
        raise ConfigError(
            f"{source}: rope_parameters has keys {sorted(table)}; as one mapping per layer type it "
            f"must have {layer_type!r} and layer types only"
        )
    inner = table[layer_type]
    if not isinstance(inner, Mapping):
        raise ConfigError(f"{source}: rope_parameters.{layer_type}={inner!r} is not a mapping")
    return dict(inner)


def _kind(table: dict[str, Any], source: str) -> str:
    kinds = {str(table[key]) for key in ("rope_type", "type") if table.get(key) is not None}
    if len(kinds) > 1:
        raise ConfigError(f"{source}: rope_type and type disagree: {sorted(kinds)}")
    scaled = sorted(
        key for key, value in table.items() if key not in _SHARED_KEYS and value is not None
    )
    if not kinds and scaled:
        raise ConfigError(f"{source}: the rope settings have {scaled} but no rope_type")
    kind = kinds.pop() if kinds else "default"
    if kind in _NOT_BUILT:
        raise UnsupportedError(f"{source}: rope_type {kind!r} is not supported yet")
    if kind not in _KINDS:
        known = ", ".join(_KINDS)
        raise ConfigError(f"{source}: rope_type={kind!r} is not allowed: one of {known}")
    return kind


def _build(table: dict[str, Any], kind: str, source: str) -> RopeConfig:
    reader = ConfigReader(table, f"{source}: rope settings")
    allowed = (*_SHARED_KEYS, *_KINDS[kind])
    strange = sorted(key for key in table if key not in allowed and table[key] is not None)
    if strange:
        raise ConfigError(f"{source}: rope_type {kind!r} has no settings {strange}")
    config = RopeConfig(
        theta=reader.number("rope_theta"),
        kind=kind,
        factor=reader.number("factor") if kind != "default" else 1.0,
        partial=reader.number("partial_rotary_factor", 1.0),
    )
    if kind != "llama3":
        return config
    low, high = reader.number("low_freq_factor"), reader.number("high_freq_factor")
    if high <= low:
        raise reader.bad("high_freq_factor", high, f"above low_freq_factor={low}")
    return attrs.evolve(
        config,
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_positions=reader.integer("original_max_position_embeddings"),
    )
