"""``kv_connector_extra_config`` of the connector ``multi``."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import attrs

from pegboard.api.connector import KVTransferConfig
from pegboard.errors import ConfigError

__all__ = ["Settings"]

POLICY = "kv_load_failure_policy"


def _reject(key: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(f"kv_connector_extra_config: {key}={value!r} is not allowed: {allowed}")


def _children(given: Any) -> tuple[KVTransferConfig, ...]:
    if not isinstance(given, (list, tuple)) or not given:
        raise _reject("connectors", given, "a list of at least one kv_transfer_config")
    for number, child in enumerate(given):
        if isinstance(child, Mapping) and POLICY in child:
            raise ConfigError(
                f"kv_connector_extra_config: connectors[{number}] has the key {POLICY!r}, which "
                "belongs beside 'multi': it is one for all"
            )
    return tuple(_child(number, child) for number, child in enumerate(given))


def _child(number: int, given: Any) -> KVTransferConfig:
    try:
        return KVTransferConfig.make(given)
    except ConfigError as error:
        place = f"kv_connector_extra_config: connectors[{number}]"
        raise ConfigError(f"{place}: {error}") from None


def _flag(_: Any, field: attrs.Attribute[bool], value: Any) -> None:
    if not isinstance(value, bool):
        raise _reject(field.name, value, "true or false")


@attrs.frozen(kw_only=True)
class Settings:
    """Which connectors, in which order. `read` checks every key."""

    connectors: tuple[KVTransferConfig, ...] = attrs.field(converter=_children)
    """The first one is asked first."""
    isolate: bool = attrs.field(default=True, validator=_flag)
    """A connector that breaks down counts as having nothing; otherwise the whole breaks down."""

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Settings:
        """Raises `ConfigError` naming the key, the value and what is allowed."""
        known = [field.name for field in attrs.fields(cls)]
        for key in given:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                raise ConfigError(
                    f"kv_connector_extra_config: key {key!r} is not one of {', '.join(known)}{hint}"
                )
        if "connectors" not in given:
            raise ConfigError("kv_connector_extra_config: the key 'connectors' is missing")
        return cls(**given)
