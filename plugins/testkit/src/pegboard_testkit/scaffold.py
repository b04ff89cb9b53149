"""``pegboard plugins new``: writes a small plugin that installs and passes its tests as it is."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import Annotated

import attrs
import typer

from pegboard import __version__
from pegboard.errors import ConfigError
from pegboard.testing.boards import board_with
from pegboard_testkit.taken import names_in_use

__all__ = ["SURFACES", "new", "write_plugin"]

TEMPLATES = Path(__file__).with_name("templates")
"""``common`` is for every plugin; a folder per surface has the rest. ``MODULE`` in a path stands
for the plugin's package, ``NAME`` for its name; in the files, `_names` says what is put in."""


@attrs.frozen
class _Sort:
    """What differs in the project file."""

    what: str
    group: str = "plugins"
    dependencies: tuple[str, ...] = ()
    borrowed: tuple[str, ...] = ()
    """Templates of other surfaces that it has too."""


SURFACES = MappingProxyType(
    {
        "alias": _Sort("A model alias", "models"),
        "attention": _Sort("An attention backend", "attention", ("torch",)),
        "checkpoint": _Sort("A reader of checkpoint files", "plugins", ("attrs", "numpy", "torch")),
        "command": _Sort("A command"),
        "connector": _Sort("A KV connector", "connectors", ("msgspec", "torch")),
        "endpoint": _Sort("Routes of the HTTP server"),
        "events": _Sort("A publisher of KV events"),
        "executor": _Sort("An executor"),
        "logits": _Sort("A logits processor", "plugins", ("torch",)),
        "model": _Sort("A model family", "models", ("attrs", "torch")),
        "ops": _Sort("Versions of operations", "plugins", ("torch",)),
        "platform": _Sort(
            "A platform", "platforms", ("torch",), ("attention/src/MODULE/kernel.py.tmpl",)
        ),
        "quant": _Sort("A number format", "quant", ("torch",)),
        "scheduler": _Sort("A scheduler"),
        "stat_logger": _Sort("A stat logger"),
        "tokenizer": _Sort("A tokeniser"),
        "tracer": _Sort("A tracer"),
    }
)
"""Surfaces that there is a template for."""


def new(
    surface: Annotated[str, typer.Argument(help=f"One of {', '.join(SURFACES)}.")],
    name: Annotated[str, typer.Argument(help="The plugin's id, in small letters, e.g. my-thing.")],
    into: Annotated[
        str, typer.Option(help="Folder to write, new or empty. Default: the distribution's name.")
    ] = "",
) -> None:
    """Write a small complete plugin, with its tests."""
    folder = write_plugin(surface, name, Path(into) if into else None)
    print(f"{folder} has a plugin for the surface {surface!r}. Next:")
    print(f"  pip install -e '{folder}[test]'")
    print(f"  python -m pytest {folder / 'tests'}")
    for sentence in names_in_use(surface, _names(surface, name), board_with(surface)):
        print(f"Warning: {sentence}", file=sys.stderr)


def write_plugin(surface: str, name: str, folder: Path | None = None) -> Path:
    """Write the files of a plugin; returns their folder, by default named like the distribution.

    Raises `ConfigError` for an unknown surface, a name that is none, or a folder that is in use or
    cannot be written.
    """
    if surface not in SURFACES:
        raise ConfigError(f"SURFACE={surface!r} is not allowed: one of {', '.join(SURFACES)}")
    names = _names(surface, name)
    folder = Path(names["distribution"]) if folder is None else folder
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"--into {folder} is not allowed: it exists and is no empty folder")
        for source in _templates(surface):
            _write(source, folder, names)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error}") from error
    return folder


def _write(source: Path, folder: Path, names: Mapping[str, str]) -> None:
    """One file, from its template."""
    _, _, place = source.relative_to(TEMPLATES).as_posix().partition("/")
    place = place.replace("MODULE", names["module"]).replace("NAME", names["key"])
    target = folder / place.removesuffix(".tmpl")
    text = Template(source.read_text(encoding="utf-8")).substitute(names)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")


def _templates(surface: str) -> list[Path]:
    own = (sorted((TEMPLATES / part).rglob("*.tmpl")) for part in ("common", surface))
    borrowed = [TEMPLATES / place for place in SURFACES[surface].borrowed]
    return [*chain.from_iterable(own), *borrowed]


def _names(surface: str, name: str) -> dict[str, str]:
    """What the templates may name."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"NAME={name!r} is not allowed: words of small letters and digits with hyphens between "
            "them, e.g. my-thing"
        )
    sort, words = SURFACES[surface], name.split("-")
    distribution = f"pegboard-{surface}-{name}".replace("_", "-")
    listed = (f"pegboard-core=={__version__}", *sort.dependencies)
    return {
        "name": name,
        "key": "_".join(words),
        "cls": "".join(word.capitalize() for word in words),
        "distribution": distribution,
        "module": distribution.replace("-", "_"),
        "what": sort.what,
        "group": sort.group,
        "dependencies": ", ".join(f'"{line}"' for line in listed),
        "core": __version__,
    }
