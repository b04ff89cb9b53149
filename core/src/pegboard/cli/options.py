"""What several commands share: engine settings as ``name=value`` and the loading bar."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import attrs

from pegboard.config.aliases import ALIASES, canonical
from pegboard.config.engine import EngineConfig
from pegboard.errors import ConfigError

__all__ = ["LoadingBar", "engine_options", "loading_bar"]


def engine_options(pairs: list[str]) -> dict[str, Any]:
    """Settings of `EngineConfig` from ``name=value`` texts; hyphens may stand for underscores.

    A setting may also be given by an alias; the result has its own name.
    """
    kinds = {field.name: str(field.type) for field in attrs.fields(EngineConfig)}
    kinds |= {name: kinds[alias.setting] for name, alias in ALIASES.items()}
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        name = name.replace("-", "_")
        if not equals:
            raise ConfigError(f"option {pair!r} is not of the form name=value")
        options[name] = _convert(name, value, kinds.get(name, "str"))
    return canonical(options)


def _convert(name: str, value: str, kind: str) -> Any:
    if "None" in kind and value.lower() == "none":
        return None
    if "bool" in kind:
        if value.lower() not in ("true", "false", "1", "0"):
            raise ConfigError(f"{name}={value!r} is not allowed: true or false")
        return value.lower() in ("true", "1")
    maker = int if "int" in kind else float if "float" in kind else str
    try:
        return maker(value)
    except ValueError:
        raise ConfigError(f"{name}={value!r} is not allowed: it must be {kind}") from None


class LoadingBar:
    """A progress bar on a terminal, nothing elsewhere. Called with (bytes done, bytes in all)."""

    def __init__(self, shown: bool) -> None:
        self._shown = shown
        self._bar: Any = None

    def __call__(self, done: int, total: int) -> None:
        if not self._shown:
            return
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(total=total, unit="B", unit_scale=True, desc="loading", leave=False)
        self._bar.update(done - self._bar.n)

    def finish(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


@contextlib.contextmanager
def loading_bar(quiet: bool) -> Iterator[LoadingBar]:
    """A bar that is taken away also when loading fails."""
    bar = LoadingBar(shown=not quiet and sys.stderr.isatty())
    try:
        yield bar
    finally:
        bar.finish()
