"""A folder of made-up distributions that a test fills and loads."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pegboard.__about__ import __version__
from pegboard.plugins import Board, build_board

PLATFORM_PLUGIN = """
from pegboard.api.hooks import hookimpl
from pegboard.api.platform import Platform

PEGBOARD_API = {{"platform": 0}}


@hookimpl
def pegboard_platforms():
    return [Platform(name={name!r}, probe="nowhere:probe", runtime="nowhere:runtime")]
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
        """`entry_points` maps ``"models:llama"`` to a module; `files` are written beside it."""
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        headers = [f"Name: {distribution}", f"Version: {version}"]
        headers += [f"Requires-Dist: {line}" for line in requires]
        (info / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(headers) + "\n")
        listing = ""
        for key, module in entry_points.items():
            group, _, name = key.partition(":")
            listing += f"[pegboard.{group}]\n{name} = {module}\n"
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
