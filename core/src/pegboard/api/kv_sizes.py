"""Sizes that specifications of cached things share. Part of `pegboard.api.kv`."""

from __future__ import annotations

import attrs

from pegboard.errors import ConfigError, PluginError

__all__ = ["ITEM_BYTES", "kv_heads_on_rank"]

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}
"""Bytes per element of the dtypes that a cache may have, by torch name."""


def blocks_touched(tokens: int, block_size: int) -> int:
    """Most blocks that `tokens` tokens in a row lie in, wherever they begin."""
    return 0 if tokens <= 0 else (tokens + block_size - 2) // block_size + 1


def kv_heads_on_rank(kv_heads: int, world: int) -> int:
    """Key and value heads that each of `world` ranks holds; with fewer heads than ranks, several
    ranks hold the same one. Raises `ConfigError` if neither number divides the other."""
    if kv_heads % world and world % kv_heads:
        raise ConfigError(
            f"{kv_heads} key and value heads cannot be divided among {world} ranks; "
            "tensor_parallel_size must divide them, or be a multiple of them"
        )
    return max(kv_heads // world, 1)


def positive(spec: object, field: attrs.Attribute[int], value: int) -> None:
    """An attrs validator for counts and sizes."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        name = f"{type(spec).__name__}.{field.name}"
        raise PluginError(f"{name}={value!r} is not allowed: at least 1, an integer")
