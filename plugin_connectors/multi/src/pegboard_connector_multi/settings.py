"""``kv_connector_extra_config`` of the connector ``multi``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from pegboard.api.connector import KVTransferConfig
from pegboard.api.settings import check_keys, refused, setting_names
from pegboard.errors import ConfigError

__all__ = ["Settings"]

POLICY = "kv_load_failure_policy"

_WHERE = "kv_connector_extra_config"


def _reject(key: str, value: object, allowed: str) -> ConfigError:
    return refused(_WHERE, key, value, allowed)


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
        check_keys(_WHERE, given, setting_names(cls), required=["connectors"])
        return cls(**given)
