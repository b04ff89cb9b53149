"""Options that several commands have, and engine settings as ``name=value``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from pegboard.errors import ConfigError

__all__ = [
    "DEFAULT_URL",
    "EngineOption",
    "KeyOption",
    "LoadingLine",
    "UrlOption",
    "engine_settings",
    "same_source",
]

DEFAULT_URL = "http://127.0.0.1:8000"

UrlOption = Annotated[
    str | None, typer.Option(help="Address of a server, with or without /v1 at its end.")
]
KeyOption = Annotated[
    str | None,
    typer.Option(help="Key for the server. Also PEGBOARD_API_KEY, or OPENAI_API_KEY."),
]
EngineOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option", "-o", help="Of a local model: engine settings, name=value (JSON, else text)."
    ),
]


def engine_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Settings of `EngineConfig` from ``name=value`` words. Raises `ConfigError`."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.replace("-", "_")
        if not equals or not name or name == "model":
            raise ConfigError(f"-o {pair} is not allowed: name=value, of an engine setting")
        try:
            settings[name] = json.loads(text)
        except ValueError:
            settings[name] = text
    return settings


def same_source(url: str | None, pairs: Sequence[str] | None) -> None:
    """Raises `ConfigError` for engine settings beside a server: they are its own affair."""
    if url is not None and pairs:
        raise ConfigError(
            f"-o {pairs[0]} is not allowed together with --url: a server has its own settings"
        )


class LoadingLine:
    """How far a model is loaded, on one line of a terminal; nothing elsewhere."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._last = -1

    def __call__(self, done: int, total: int) -> None:
        share = 100 * done // max(total, 1)
        if self._shown and share != self._last:
            self._last = share
            sys.stderr.write(f"\rloading: {share} %")
            sys.stderr.flush()

    def finish(self) -> None:
        """Take the line away."""
        if self._last >= 0:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
