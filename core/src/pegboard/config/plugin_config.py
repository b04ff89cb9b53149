"""``plugin_config``: the settings of plugins, by plugin id and name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pegboard.api.settings import parse_json, refused
from pegboard.errors import ConfigError

__all__ = ["parse_plugin_config", "plugin_config_of_words"]

_WHERE = "plugin_config"
_ALLOWED = "a mapping of plugin ids to mappings of settings, or its JSON"


def parse_plugin_config(given: Any) -> Mapping[str, Mapping[str, Any]]:
    """Accept a mapping or its JSON text; what it holds is judged by the plugins.

    Raises `ConfigError` for anything else.
    """
    values = parse_json(_WHERE, given, _ALLOWED) if isinstance(given, str) else given
    if not _is_mapping(values):
        raise ConfigError(f"{_WHERE}={given!r} is not allowed: {_ALLOWED}")
    for plugin_id, settings in values.items():
        if not _is_mapping(settings):
            raise refused(_WHERE, plugin_id, settings, "a mapping of settings by name")
    return {plugin_id: dict(settings) for plugin_id, settings in values.items()}


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def plugin_config_of_words(words: Iterable[str]) -> dict[str, dict[str, Any]]:
    """From texts ``id.key=value``; a value that is JSON is read as such, any other is text.

    Raises `ConfigError` for a text of another form, and for a key that is given twice.
    """
    import json  # few command lines have such words

    found: dict[str, dict[str, Any]] = {}
    for word in words:
        place, equals, text = word.partition("=")
        plugin_id, dot, key = place.rpartition(".")
        if not (equals and dot and plugin_id and key):
            raise ConfigError(f"--plugin-config {word!r} is not allowed: id.key=value")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        settings = found.setdefault(plugin_id, {})
        if key in settings:
            raise ConfigError(f"--plugin-config {place} is given twice; give it once")
        settings[key] = value
    return found
