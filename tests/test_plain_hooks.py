"""Hooks' modules only declare, so that loading them is quick, but for those named here."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import pytest

from pegboard.plugins.plain import only_declares
from pegboard_testkit.scaffold import SURFACES, write_plugin

WATCHED = {
    "pegboard-legacy-vllm",
    "pegboard-metrics-prometheus",
    "pegboard-quant-gguf",
    "pegboard-stats-log",
    "pegboard-testkit",
    "pegboard-tracing-otel",
}
"""They import a module of their own: settings, a table that the program needs anyway, or what few
programs need."""


def is_plain(path: Path) -> bool:
    return only_declares(ast.parse(path.read_text()))


def test_hooks_of_first_party_plugins_only_declare(workspace: ModuleType) -> None:
    members = [m for m in workspace.members(workspace.ROOT) if m.entry_points()]
    assert len(members) > 10
    assert {m.distribution for m in members if not is_plain(m.package / "__init__.py")} == WATCHED


@pytest.mark.parametrize("surface", SURFACES)
def test_so_do_those_that_the_scaffold_writes(tmp_path: Path, surface: str) -> None:
    (hooks,) = write_plugin(surface, "mine", tmp_path / surface).glob("src/*/__init__.py")
    assert is_plain(hooks)
