"""A folder of made-up distributions that a test fills and loads."""

from __future__ import annotations

import builtins
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch

from pegboard.__about__ import __version__
from pegboard.api.levels import API_LEVELS
from pegboard.plugins import Board, build_board

PLATFORM_PLUGIN = """
from pegboard.api.hooks import hookimpl
from pegboard.api.platform import Platform

PEGBOARD_API = {{"platform": 0}}


@hookimpl
def pegboard_platforms():
    return [Platform(name={name!r}, probe="nowhere:probe", runtime="nowhere:runtime")]
"""

SABOTEUR = """
import os, signal, sys, threading, types, warnings
from pegboard.api.command import Command
from pegboard.api.hooks import hookimpl
from pegboard.api.ops import OpVersion
from pegboard.api.platform import Platform

PEGBOARD_API = {"command": 0, "ops": 0, "platform": 0}


def platform(name="odd"):
    return Platform(name=name, probe="nowhere:probe", runtime="nowhere:runtime")

"""


class Site:
    """An installation folder: `add` writes a distribution, `load` makes a board of all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(
        self,
        distribution: str,
        entry_points: Mapping[str, str],
        *,
        version: str = "1.0",
        requires: Sequence[str] = (f"pegboard-core=={__version__}",),
        files: Mapping[str, str] | None = None,
    ) -> None:
        """`entry_points` maps ``"models:llama"`` to a module, or ``"other.group:name"`` of another
        program to whatever it wants; `files` are written beside it."""
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        headers = [f"Name: {distribution}", f"Version: {version}"]
        headers += [f"Requires-Dist: {line}" for line in requires]
        (info / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(headers) + "\n")
        listing = ""
        for key, module in entry_points.items():
            group, _, name = key.partition(":")
            full = group if "." in group else f"pegboard.{group}"
            listing += f"[{full}]\n{name} = {module}\n"
        (info / "entry_points.txt").write_text(listing)
        for path, text in (files or {}).items():
            target = self.folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        record = [*(files or {}), f"{info.name}/METADATA", f"{info.name}/RECORD"]
        (info / "RECORD").write_text("".join(f"{path},,\n" for path in record))

    def add_platform(self, distribution: str, key: str, **options: Any) -> str:
        """A plugin that registers one platform named as its entry point; returns the module."""
        module = f"{distribution.replace('-', '_')}_module"
        source = PLATFORM_PLUGIN.format(name=key.partition(":")[2])
        self.add(distribution, {key: module}, files={f"{module}.py": source}, **options)
        return module

    def add_source(self, source: str, key: str = "plugins:odd", **options: Any) -> str:
        """A distribution ``odd`` whose plugin module has this source; returns the module."""
        self.add("odd", {key: "odd_module"}, files={"odd_module.py": source}, **options)
        return "odd_module"

    def add_saboteur(self, body: str, **options: Any) -> str:
        """As `add_source`; `body` follows imports, the API levels and a function `platform`."""
        return self.add_source(f"{SABOTEUR}\n{dedent(body)}\n", **options)

    def load(self, allowlist: str | None = None, **options: Any) -> Board:
        """A board of these distributions alone."""
        environ = {} if allowlist is None else {"VLLM_PLUGINS": allowlist}
        return build_board(environ=environ, search_path=[str(self.folder)], **options)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield Site(folder)
    for name in set(sys.modules) - before:
        origin = getattr(sys.modules[name], "__file__", None) or ""
        if origin.startswith(str(folder)):
            del sys.modules[name]


COMMAND_PLUGIN = """
from pegboard.api.command import Command
from pegboard.api.hooks import hookimpl

PEGBOARD_API = {{"command": 0}}


@hookimpl
def pegboard_commands(ctx):
    ctx.metrics.counter("asked", "Times that the hook was called").add()
    return [Command({name!r}, "Be sound", "{name}_module:work")]


def work():
    return {name!r}
"""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class Rest:
    """All that is not the saboteur: two sound plugins, one loaded before and one after it, the core
    and the process; and how they were without it."""

    def __init__(self, site: Site) -> None:
        self._site = site
        for name in ("alpha", "zulu"):
            source = COMMAND_PLUGIN.format(name=name)
            files = {f"{name}_module.py": source}
            site.add(name, {f"plugins:{name}": f"{name}_module"}, files=files)
        self._registered = registered(site.load())
        self.forget()
        self._process, self._core = process(), core()
        self._modules = dict(sys.modules)

    def forget(self) -> None:
        """Unload what was loaded from the site."""
        for name, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(str(self._site.folder)):
                del sys.modules[name]

    def check(self, board: Board) -> None:
        """The sound plugins work, and nothing is otherwise than it was without the saboteur."""
        assert registered(board) == self._registered
        for name in ("alpha", "zulu"):
            assert board.require("command", name, wanted_by="a test").app.load()() == name
            assert board.metrics.get(f"pegboard_plugin_{name}_asked").value == 1  # type: ignore[union-attr]
        assert len(board.metrics) == 2
        self.check_process()

    def check_process(self) -> None:
        """The core and the process are as they were, and no module of the saboteur is left."""
        assert process() == self._process
        now = core()
        assert [key for key in self._core if now.get(key) is not self._core[key]] == []
        classes = {owner for owner, _ in self._core} - self._modules.keys()
        assert [key for key in now if key[0] in classes and key not in self._core] == []
        replaced = [n for n, m in self._modules.items() if sys.modules.get(n) is not m]
        assert replaced == []
        assert [name for name in sys.modules if name.startswith("odd")] == []


def registered(board: Board) -> dict[str, list[tuple[Any, str]]]:
    """What is on the board, by surface, and whose it is."""
    return {
        surface: [(e.descriptor, str(e.provenance)) for e in board.registry(surface).entries()]
        for surface in API_LEVELS
    }


def process() -> dict[str, Any]:
    """What is one for the whole process."""
    variables = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
    return {
        "dtype": torch.get_default_dtype(),
        "handlers": [signal.getsignal(number) for number in SIGNALS],
        "environment": variables,
        "filters": list(warnings.filters),
        "finders": list(sys.meta_path),
        "path": list(sys.path),
        "streams": (type(sys.stdout), type(sys.stderr)),
        "hook": sys.excepthook,
        "folder": os.getcwd(),
        "builtins": {k: v for k, v in vars(builtins).items() if k != "_"},
    }


def core() -> dict[tuple[str, str], Any]:
    """Everything in the modules of the core and in the bodies of its classes, by owner and name."""
    found: dict[tuple[str, str], Any] = {}
    modules = [m for n, m in list(sys.modules.items()) if n.partition(".")[0] == "pegboard"]
    for module in modules:
        for name, value in [item for item in vars(module).items() if item[0][:2] != "__"]:
            found[module.__name__, name] = value
            if isinstance(value, type) and value.__module__ == module.__name__:
                owner = f"{module.__name__}.{name}"
                found |= {(owner, key): part for key, part in vars(value).items() if key[0] != "_"}
    return found


@pytest.fixture
def rest(site: Site, capfd: pytest.CaptureFixture[str]) -> Iterator[Rest]:
    """What a saboteur may not harm; at the end, nothing may have been printed."""
    yield Rest(site)
    assert capfd.readouterr().out == ""
