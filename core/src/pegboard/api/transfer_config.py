"""``kv_transfer_config``: which connector an engine uses, and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from pegboard.api.settings import check_keys, parse_json, refused, setting_names
from pegboard.errors import ConfigError

__all__ = ["KVTransferConfig"]

ROLES = ("kv_producer", "kv_consumer", "kv_both")
POLICIES = ("recompute", "fail")
_WHERE = "kv_transfer_config"


def _one_of(*allowed: str) -> Any:
    def check(_: Any, field: attrs.Attribute[Any], value: object) -> None:
        if value not in allowed:
            raise _reject(field.name, value, "one of " + ", ".join(allowed))

    return check


def _name(_: Any, field: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, str) or not value:
        raise _reject(field.name, value, "the name of a connector")


def _optional_text(_: Any, field: attrs.Attribute[Any], value: object) -> None:
    if value is not None and (not isinstance(value, str) or not value):
        raise _reject(field.name, value, "a string of at least one character or None")


def _mapping(_: Any, field: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _reject(field.name, value, "a mapping with text keys")


def _reject(field: str, value: object, allowed: str) -> ConfigError:
    return refused(_WHERE, field, value, allowed)


@attrs.frozen(kw_only=True)
class KVTransferConfig:
    """Settings of one connector; raises `ConfigError` naming field and value."""

    kv_connector: str = attrs.field(validator=_name)
    """Registered name of the connector."""
    kv_role: str = attrs.field(default="kv_both", validator=_one_of(*ROLES))
    """``kv_producer`` saves only, ``kv_consumer`` loads only. The core does not ask a producer's
    connector for matches and shows a consumer's no filled blocks."""
    engine_id: str | None = attrs.field(default=None, validator=_optional_text)
    """This engine's name among those it exchanges with. None: the connector chooses."""
    kv_connector_extra_config: Mapping[str, Any] = attrs.field(factory=dict, validator=_mapping)
    """The connector's own settings; it refuses keys that it does not know."""
    kv_load_failure_policy: str = attrs.field(default="recompute", validator=_one_of(*POLICIES))
    """``recompute``: a request whose load failed computes the rest itself. ``fail``: it ends."""

    @property
    def loads(self) -> bool:
        return self.kv_role != "kv_producer"

    @property
    def saves(self) -> bool:
        return self.kv_role != "kv_consumer"

    @classmethod
    def make(cls, given: KVTransferConfig | Mapping[str, Any] | str) -> KVTransferConfig:
        """From a mapping or its JSON text; unknown keys are refused. Raises `ConfigError`."""
        if isinstance(given, KVTransferConfig):
            return given
        values = parse_json(_WHERE, given, "a JSON object") if isinstance(given, str) else given
        if not isinstance(values, Mapping):
            raise ConfigError(
                f"kv_transfer_config={given!r} is not allowed: a mapping or a JSON object"
            )
        check_keys(_WHERE, values, setting_names(cls), required=["kv_connector"])
        return cls(**values)
