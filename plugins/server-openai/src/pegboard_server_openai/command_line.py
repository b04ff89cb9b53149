"""From the words of ``pegboard serve`` and its configuration file to settings."""

from __future__ import annotations

import argparse
import difflib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import attrs

from pegboard import EngineConfig
from pegboard.errors import ConfigError
from pegboard_server_openai.config_file import read_config
from pegboard_server_openai.flags import FLAGS, GROUPS, Flag
from pegboard_server_openai.options import AppOptions, ServerOptions
from pegboard_server_openai.refused import IDLE, REFUSED, RENAMED

__all__ = ["KEY_VARIABLE", "SEQUENCES_VARIABLE", "Settings", "parse"]

KEY_VARIABLE = "PEGBOARD_API_KEY"
SEQUENCES_VARIABLE = "VLLM_MAX_N_SEQUENCES"

_BY_NAME = {flag.name: flag for flag in FLAGS}
_SHORT = {"O": "compilation-config", "pp": "pipeline-parallel-size", "dp": "data-parallel-size"}
"""Of refused flags."""
_FURTHER = ("model", "config", "option", "help")
_OWN = {
    "config": "a file names no further file; --config stands on the command line, once",
    "help": "it stands on the command line",
    "option": "in a file a setting stands under its own name",
}
"""Of the command line only."""


@attrs.frozen
class Settings:
    """What a command line and a file say."""

    engine: EngineConfig
    app: AppOptions
    server: ServerOptions


def parse(words: Sequence[str], environ: Mapping[str, str] = os.environ) -> Settings:
    """Read a command line, and the file of its ``--config``, over which it wins.

    Raises `ConfigError`; ``--help`` prints and exits.
    """
    found = vars(_parser().parse_args([_normal(word) for word in words]))
    given = _from_file(found.pop("config", None)) | found
    first, second = given.pop("MODEL", None), given.pop("model", None)
    if first is not None and second is not None and "model" in found and first != second:
        raise ConfigError(f"the model is given twice: {first!r} and --model {second!r}")
    model = first if first is not None else second
    if model is None:
        raise ConfigError("pegboard serve needs a MODEL: a GGUF file, a directory or a hub id")
    parts = _parts(given)
    parts["app"].setdefault("names", [model])
    _from_variables(parts["app"], environ)
    return Settings(
        EngineConfig.from_options({"model": model, **parts["engine"]}),
        AppOptions(root=model, **parts["app"]),
        ServerOptions(**parts["server"]),
    )


def _from_variables(app: dict[str, Any], environ: Mapping[str, str]) -> None:
    """A key joins those of the flags; over the number of sequences the flag wins."""
    key = environ.get(KEY_VARIABLE)
    if key:
        app["api_keys"] = [*app.get("api_keys", ()), key]
    most = environ.get(SEQUENCES_VARIABLE)
    if most:
        try:
            app.setdefault("max_n_sequences", int(most))
        except ValueError:
            raise ConfigError(
                f"{SEQUENCES_VARIABLE}={most!r} is not allowed: it must be a whole number"
            ) from None


def _parts(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    parts: dict[str, dict[str, Any]] = {"engine": {}, "app": {}, "server": {}}
    for name, value in given.items():
        if name in ("option", "idle"):
            continue
        flag = _BY_NAME[name]
        parts[flag.part][flag.field] = _pairs(value) if flag.kind == "pairs" else value
    for pair in given.get("option", ()):
        name, value = _option(pair)
        if parts["engine"].get(name, value) != value:
            raise ConfigError(f"{name} is given twice: as a flag and as -o {pair}")
        parts["engine"][name] = value
    return parts


def _option(pair: str) -> tuple[str, Any]:
    name, equals, text = pair.partition("=")
    name = name.replace("-", "_")
    if not equals or not name or name == "model":
        raise ConfigError(f"-o {pair} is not allowed: name=value, of an engine setting")
    return name, _json_or_text(text)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _pairs(words: Any) -> dict[str, dict[str, Any]]:
    """``id.key=value`` words as a mapping of mappings."""
    if isinstance(words, dict):
        return words
    found: dict[str, dict[str, Any]] = {}
    for word in words:
        place, equals, text = str(word).partition("=")
        owner, dot, key = place.partition(".")
        if not (equals and dot and owner and key):
            raise ConfigError(f"--plugin-config {word} is not allowed: id.key=value")
        found.setdefault(owner, {})[key] = _json_or_text(text)
    return found


def _normal(word: str) -> str:
    """A flag with hyphens, which may be written with underscores."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def _from_file(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    given: dict[str, Any] = {}
    names: dict[str, str] = {}
    for key, value in read_config(path).items():
        name = RENAMED.get(key, key)
        if name in names:
            raise ConfigError(f"{path}: {names[name]!r} and {key!r} say the same; give one of them")
        names[name] = key
        if key in _OWN:
            raise ConfigError(f"{path}: the key {key!r} is not allowed: {_OWN[key]}")
        if name == "model" and isinstance(value, str):
            given["model"] = value
        elif name in _BY_NAME:
            given[name] = _BY_NAME[name].check(value, path)
        elif name not in IDLE:
            raise ConfigError(f"{path}: {_unknown(name, f'key {key!r}')}")
    return given


def _unknown(name: str, shown: str) -> str:
    """Why there is no such flag, or which one may be meant."""
    why = REFUSED.get(name) or REFUSED.get(name.removeprefix("no-"))
    if why is not None:
        return f"{shown} is not supported: {why}"
    known = [*_BY_NAME, *_FURTHER, *RENAMED, *IDLE, *(f"no-{n}" for n in _switches())]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {'--' if shown[0] == '-' else ''}{near[0]}?" if near else ""
    return f"there is no {shown}{hint}"


def _switches() -> list[str]:
    return [flag.name for flag in FLAGS if flag.kind == "switch"]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, rest = self.parse_known_args(args, namespace)
        for word in rest:
            if word.startswith("-") and len(word) > 1:
                self._refuse(word.partition("=")[0])
        if rest:
            raise ConfigError(f"{rest[0]!r} is one word too many; there is one MODEL")
        return found

    @staticmethod
    def _refuse(word: str) -> NoReturn:
        name = word.lstrip("-")
        raise ConfigError(_unknown(_SHORT.get(name, name), word))


def _parser() -> _Parser:
    parser = _Parser(
        prog="pegboard serve",
        description="Serve a model over HTTP, as OpenAI's API.",
        epilog="Numbers of tokens, blocks and bytes may end in k, m, g (decimal) or K, M, G "
        "(binary). docs/serving.md tells which flags of other servers have another name here.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34, width=100),
        usage="pegboard serve MODEL [FLAG ...]",
    )
    parser.add_argument("MODEL", nargs="?", help="A GGUF file, a checkpoint directory or a hub id.")
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--config", metavar="FILE", help="YAML with flags; the command line wins.")
    groups = {name: parser.add_argument_group(name) for name in GROUPS}
    for flag in FLAGS:
        _add(groups[flag.group], flag)
    groups["Other names"].add_argument(
        "--option", "-o", action="append", metavar="NAME=VALUE", help="An engine setting."
    )
    for old, new in RENAMED.items():
        if new in _BY_NAME:
            _add(parser, attrs.evolve(_BY_NAME[new], name=old, short="", help=""), dest=new)
        else:
            parser.add_argument(f"--{old}", dest=new, help=argparse.SUPPRESS)
    for name in IDLE:
        parser.add_argument(
            f"--{name}", action="store_const", const=None, dest="idle", help=argparse.SUPPRESS
        )
    return parser


def _add(group: Any, flag: Flag, dest: str = "") -> None:
    words = [f"--{flag.name}", *([f"-{flag.short}"] if flag.short else ())]
    common: dict[str, Any] = {"dest": dest or flag.name, "help": flag.help or argparse.SUPPRESS}
    if flag.kind == "switch":
        group.add_argument(*words, action=argparse.BooleanOptionalAction, **common)
        return

    def read(text: str) -> Any:
        try:
            return flag.read(text)
        except ConfigError as error:  # which argparse would take for a slip of ours
            raise argparse.ArgumentTypeError(str(error)) from None

    common.update(type=read, metavar=_metavar(flag))
    if flag.kind == "texts":
        common.update(nargs="+", action=_Extend)
    elif flag.kind == "pairs":
        common.update(action="append")
    group.add_argument(*words, **common)


def _metavar(flag: Flag) -> str:
    kinds = {"int": "N", "size": "N", "float": "X", "json": "JSON", "pairs": "ID.KEY=VALUE"}
    return kinds.get(flag.kind, "TEXT")


class _Extend(argparse.Action):
    """Words, and JSON lists of words, one after the other."""

    def __call__(self, _: Any, namespace: Any, values: Any, option: Any = None) -> None:
        found = list(getattr(namespace, self.dest, ()))
        for value in values:
            found += value if isinstance(value, list) else [value]
        setattr(namespace, self.dest, found)
