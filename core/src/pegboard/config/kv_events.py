"""``kv_events_config``: whether and through whom KV events are published."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import attrs

from pegboard.api.settings import parse_json, refused
from pegboard.errors import ConfigError

__all__ = ["KVEventsConfig", "parse_kv_events"]

NULL_PUBLISHER = "null"
_WHERE = "kv_events_config"
_ALLOWED = "a mapping, or the JSON of one"
_OWN = ("enable_kv_cache_events", "publisher")


def _reject(field: str, value: object, allowed: str) -> ConfigError:
    return refused(_WHERE, field, value, allowed)


@attrs.frozen(kw_only=True)
class KVEventsConfig:
    """What the core reads of ``kv_events_config``; the rest belongs to the publisher."""

    enable_kv_cache_events: bool = attrs.field(default=False)
    publisher: str | None = attrs.field(default=None)
    """Name of the publisher, ``"null"`` for none. None: the one that is installed."""
    options: Mapping[str, Any] = attrs.field(factory=dict)
    """Every other key; the publisher checks them when it is opened."""

    @enable_kv_cache_events.validator
    def _check_switch(self, field: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, bool):
            raise _reject(field.name, value, "true or false")

    @publisher.validator
    def _check_publisher(self, field: attrs.Attribute[Any], value: object) -> None:
        if value is not None and (not isinstance(value, str) or not value):
            raise _reject(field.name, value, "the name of a publisher, or null")

    @property
    def active(self) -> bool:
        """Events are made."""
        return self.enable_kv_cache_events and self.publisher != NULL_PUBLISHER


def parse_kv_events(value: Any) -> KVEventsConfig | None:
    """From a mapping or the JSON text of one; None stays None. Raises `ConfigError`."""
    if value is None or isinstance(value, KVEventsConfig):
        return value
    if isinstance(value, str):
        value = parse_json(_WHERE, value, _ALLOWED)
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{_WHERE}={value!r} is not allowed: {_ALLOWED}")
    options = {key: item for key, item in value.items() if key not in _OWN}
    for key in options:
        near = difflib.get_close_matches(key, _OWN, n=1, cutoff=0.8)
        if near:
            hint = f"did you mean {near[0]!r}?"
            raise ConfigError(f"{_WHERE}: unknown key {key!r}; {hint}")
    return KVEventsConfig(options=options, **{key: value[key] for key in _OWN if key in value})
