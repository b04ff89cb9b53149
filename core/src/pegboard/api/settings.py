"""What surfaces with settings of their own share: keys checked by name, values refused by name.

A mapping of settings, whether it came as such or as JSON text, is checked the same way everywhere:
an unknown key is refused with the nearest known one, a bad value with what is allowed.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from pegboard.errors import ConfigError

__all__ = ["check_keys", "parse_json", "refused", "setting_names"]


def refused(where: str, key: str, value: object, allowed: str) -> ConfigError:
    """The error for a bad value, in the settings called `where`."""
    return ConfigError(f"{where}: {key}={value!r} is not allowed: {allowed}")


def setting_names(cls: type) -> list[str]:
    """Names of the fields of an attrs class, which are the keys of its settings."""
    return [field.name for field in attrs.fields(cls)]


def check_keys(
    where: str, given: Mapping[str, Any], known: list[str], required: Iterable[str] = ()
) -> None:
    """Raise `ConfigError` for a key that is not known, or a required one that is missing."""
    names = ", ".join(known)
    for key in given:
        if key in known:
            continue
        from difflib import get_close_matches  # only errors need it, and start-up must be quick

        near = get_close_matches(str(key), known, n=1)
        if near:
            raise ConfigError(
                f"{where}: key {key!r} is not one of {names} (did you mean {near[0]!r}?)"
            )
        raise ConfigError(f"{where}: unknown key {key!r}; there are {names}")
    for key in required:
        if key not in given:
            raise ConfigError(f"{where}: the key {key!r} is missing")


def parse_json(where: str, text: str, allowed: str) -> Any:
    """The value of a JSON text; `ConfigError` says what is `allowed` where it is none."""
    import json  # start-up must be quick

    try:
        return json.loads(text, object_pairs_hook=_once_each)
    except (ValueError, RecursionError) as error:  # the latter where it is nested too deeply
        raise ConfigError(
            f"{where}={reprlib.repr(text)} is not allowed: {allowed} ({error})"
        ) from None


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a key that is there twice one value would be ignored in silence."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r} is there twice")
    return found
