"""What several commands share: engine settings as ``name=value`` and the loading bar."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import attrs
import typer

from pegboard.config.aliases import ALIASES, canonical
from pegboard.config.engine import EngineConfig, unknown_option
from pegboard.config.plugin_config import plugin_config_of_words
from pegboard.errors import ConfigError

__all__ = [
    "BackendOption",
    "EventsOption",
    "ExceptOption",
    "ExtraArgsOption",
    "LoadingBar",
    "LockOption",
    "PlatformOption",
    "PluginConfigOption",
    "RanksOption",
    "StrictOption",
    "TransferOption",
    "UnsafeOption",
    "engine_flags",
    "engine_options",
    "loading_bar",
    "read_extra_args",
]

PlatformOption = Annotated[
    str | None, typer.Option(help="The device's platform. Default: the best usable one.")
]
BackendOption = Annotated[
    str | None, typer.Option(help="Default: the best one that serves the model.")
]
RanksOption = Annotated[
    int | None, typer.Option(help="Devices that share every layer out among them. Default: 1.")
]
EventsOption = Annotated[
    str | None,
    typer.Option(help="JSON: whether and where events of the prefix cache are published."),
]
ExtraArgsOption = Annotated[
    str | None, typer.Option(help="JSON: arguments of logits processors that plugins bring.")
]
TransferOption = Annotated[
    str | None, typer.Option(help="JSON: the KV connector and its settings.")
]
StrictOption = Annotated[
    bool | None,
    typer.Option("--strict-plugins", help="A plugin that fails to load is fatal."),
]
LockOption = Annotated[
    str | None,
    typer.Option(help="A lock; the engine starts only if the installed plugins are as locked."),
]
ExceptOption = Annotated[
    str | None,
    typer.Option(help="A second allowlist beside VLLM_PLUGINS: load no plugins except these."),
]
PluginConfigOption = Annotated[
    list[str] | None,
    typer.Option(help="A plugin's setting, id.key=value, as JSON or text; may be repeated."),
]
UnsafeOption = Annotated[
    bool | None,
    typer.Option("--unsafe-plugins", help="Let plugins replace parts of the core."),
]


_FLAGS = (
    "attention_backend",
    "dtype",
    "kv_events_config",
    "kv_transfer_config",
    "max_model_len",
    "no_plugins_except",
    "platform",
    "plugin_config",
    "plugins_lock",
    "strict_plugins",
    "tensor_parallel_size",
    "unsafe_plugins",
)
"""Settings that have a flag of their own wherever a command names them as an argument."""


def engine_flags(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Of a command's arguments, those that are settings of `EngineConfig`."""
    return {name: arguments[name] for name in _FLAGS if name in arguments}


def engine_options(pairs: list[str], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of `EngineConfig` from ``name=value`` texts; hyphens may stand for underscores.

    `flags` are settings that have a flag of their own, None where it was not given. A setting may
    also be given by an alias; the result has its own name. Raises `ConfigError` for an unknown
    name, a bad value, or a setting given twice with different values.
    """
    kinds = {field.name: str(field.type) for field in attrs.fields(EngineConfig)}
    options = {name: value for name, value in flags.items() if value is not None}
    if isinstance(words := options.get("plugin_config"), list):
        options["plugin_config"] = plugin_config_of_words(words)
    aliased: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        name = name.replace("-", "_")
        if not equals:
            raise ConfigError(f"option {pair!r} is not of the form name=value")
        if name == "model":
            raise ConfigError(f"-o {pair} is not allowed: the model is an argument")
        if name in ALIASES:
            aliased[name] = _convert(
                name, value, ALIASES[name].kind or kinds[ALIASES[name].setting]
            )
            continue
        if name not in kinds:
            raise unknown_option(name)
        converted = _convert(name, value, kinds[name])
        if name in options and options[name] != converted:
            raise ConfigError(
                f"{name} is given twice: {options[name]!r}, and -o {name}={value}; give it once"
            )
        options[name] = converted
    return canonical(options | aliased)


def _convert(name: str, value: str, kind: str) -> Any:
    if "None" in kind and value.lower() == "none":
        return None
    if "bool" in kind:
        if value.lower() not in ("true", "false", "1", "0"):
            raise ConfigError(f"{name}={value!r} is not allowed: true or false")
        return value.lower() in ("true", "1")
    maker = int if "int" in kind else float if "float" in kind else str
    try:
        converted = maker(value)
    except ValueError:
        raise ConfigError(f"{name}={value!r} is not allowed: it must be {kind}") from None
    if isinstance(converted, float) and math.isnan(converted):
        raise ConfigError(f"{name}={value!r} is not allowed: it must be a number")
    return converted


def read_extra_args(text: str | None) -> Any:
    """The value of ``--extra-args``, checked further by `SamplingParams`. Raises `ConfigError` for
    what is no JSON."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--extra-args {text!r} is not allowed: no JSON ({error})") from None


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
