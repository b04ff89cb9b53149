"""The YAML file of ``pegboard serve --config``."""

from __future__ import annotations

from typing import Any

import yaml

from pegboard.errors import ConfigError

__all__ = ["read_config"]


class _Loader(yaml.SafeLoader):
    """Plain values only, and no key twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", node.start_mark
                )
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


def read_config(path: str) -> dict[str, Any]:
    """The file's keys, with hyphens. Raises `ConfigError` if it holds no mapping."""
    try:
        with open(path, encoding="utf-8") as file:
            found = yaml.load(file, _Loader)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"--config {path!r} cannot be read: {reason}") from None
    except (yaml.YAMLError, TypeError, RecursionError) as error:
        raise ConfigError(f"--config {path!r} is not valid YAML: {error}") from None
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ConfigError(f"--config {path!r} is not allowed: it must hold 'flag: value' lines")
    given: dict[str, Any] = {}
    spelt: dict[str, str] = {}
    for key, value in found.items():
        name = key.replace("_", "-")
        if name in given:
            raise ConfigError(
                f"--config {path!r} has one key in two spellings: {spelt[name]!r} and {key!r}"
            )
        spelt[name], given[name] = key, value
    return given
