"""Other names for settings, as other engines call them.

A radix tree and our chained block hashes are two ways to the same end, a cache of prompt
beginnings, so those names map one to one. A setting may be given by one name only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import attrs

from pegboard.errors import ConfigError

__all__ = ["ALIASES", "Alias", "canonical"]


@attrs.frozen
class Alias:
    """Another name for a setting."""

    setting: str
    """Field of `EngineConfig`."""
    convert: Callable[[str, Any], Any] = lambda name, value: value
    """``(alias, value) -> value of the setting``; raises `ConfigError`."""
    kind: str = ""
    """Its type, where it is not the setting's."""


def _negated(name: str, value: Any) -> Any:
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r} is not allowed: True or False")
    return not value


def _nobody(name: str, value: Any) -> tuple[str, ...] | None:
    return () if not _negated(name, value) else None


def _chunk(name: str, value: Any) -> Any:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(
            f"{name}={value!r} is not allowed: an integer of at least 1 "
            "(enable_chunked_prefill=False computes prompts whole)"
        )
    return value


ALIASES: Mapping[str, Alias] = MappingProxyType(
    {
        "chunked_prefill_size": Alias("max_num_batched_tokens", _chunk),
        "context_length": Alias("max_model_len"),
        "disable_log_stats": Alias("stat_loggers", _nobody, "bool"),
        "disable_radix_cache": Alias("enable_prefix_caching", _negated),
        "max_running_requests": Alias("max_num_seqs"),
        "mem_fraction_static": Alias("gpu_memory_utilization"),
        "page_size": Alias("block_size"),
        "random_seed": Alias("seed"),
        "schedule_policy": Alias("scheduling_policy"),
    }
)


def canonical(options: Mapping[str, Any]) -> dict[str, Any]:
    """The same options under the names of `EngineConfig`; unknown names are kept as they are.

    Raises `ConfigError` if a setting is given by two names, or if a value cannot be converted.
    """
    settings: dict[str, Any] = {}
    given_as: dict[str, str] = {}
    for name, value in options.items():
        alias = ALIASES.get(name)
        setting = name if alias is None else alias.setting
        if setting in given_as:
            raise ConfigError(
                f"{given_as[setting]} and {name} are two names of one setting; give one of them"
            )
        given_as[setting] = name
        settings[setting] = value if alias is None else alias.convert(name, value)
    return settings
