"""Every first-party plugin passes the kit of each surface that it registers into."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

KITS = {
    "attention": {"AttentionKit"},
    "command": {"CommandKit"},
    "connector": {"ConnectorKit"},
    "endpoint": {"EndpointKit"},
    "events": {"EventsKit"},
    "logits": {"LogitsKit"},
    "model": {"ModelKit", "PretrainedKit"},
    "platform": {"PlatformKit"},
    "quant": {"QuantKit"},
    "scheduler": {"SchedulerKit"},
    "stat_logger": {"StatLoggerKit"},
    "tokenizer": {"TokenizerKit"},
    "tracer": {"TracerKit"},
}
"""Surface -> the classes of the kit, one of which a test class derives from."""


def surfaces_of(module: Path) -> set[str]:
    """What the literal ``PEGBOARD_API`` of a plugin's module names."""
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PEGBOARD_API":
            return set(ast.literal_eval(node.value))
    raise AssertionError(f"{module} has no PEGBOARD_API")


def kits_used(tests: Path) -> set[str]:
    """Classes of the testkit that a collected test class derives from, also by way of others."""
    used = set()
    for path in tests.glob("test_*.py"):
        tree = ast.parse(path.read_text())
        kits = dict(imported_kits(tree))
        classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        for name in classes:
            if name.startswith("Test"):
                used |= {kits[base] for base in lineage(name, classes) if base in kits}
    return used


def imported_kits(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pegboard_testkit."):
            yield from ((alias.asname or alias.name, alias.name) for alias in node.names)


def lineage(name: str, classes: dict[str, ast.ClassDef]) -> Iterator[str]:
    yield name
    for base in classes[name].bases if name in classes else ():
        yield from lineage(ast.unparse(base), classes)


def members_with_a_kit(workspace: ModuleType) -> dict[str, tuple[Path, set[str]]]:
    """Distribution -> its tests, and those of its surfaces that have a kit."""
    found = {}
    for member in workspace.members(workspace.ROOT):
        if member.entry_points():
            surfaces = surfaces_of(member.package / "__init__.py") & KITS.keys()
            found[member.distribution] = (member.root / member.folder / "tests", surfaces)
    return found


def test_every_plugin_runs_the_kit_of_each_of_its_surfaces(workspace: ModuleType) -> None:
    found = members_with_a_kit(workspace)
    assert {"pegboard-model-llama", "pegboard-platform-cuda", "pegboard-testkit"} <= found.keys()
    assert len(found) == len(list(workspace.members(workspace.ROOT))) - 1  # all but the core
    lacking = [
        f"{distribution}: no test class derives from the kit of {surface}"
        for distribution, (tests, surfaces) in found.items()
        for surface in surfaces
        if not KITS[surface] & kits_used(tests)
    ]
    assert not lacking, "\n".join(lacking)


def test_each_kit_of_the_testkit_is_known_here(workspace: ModuleType) -> None:
    (testkit,) = (m for m in workspace.members(workspace.ROOT) if m.folder.name == "testkit")
    kits = {path.stem for path in testkit.package.glob("*_kit.py")}
    others = {"config_kit", "plugin_kit", "pretrained_kit"}  # of no surface, or a kind of another
    assert {f"{surface}_kit" for surface in KITS} == kits - others


IMPORT = "from pegboard_testkit.quant_kit import QuantKit"


@pytest.mark.parametrize(
    ("lines", "used"),
    [
        ((IMPORT, "class TestIt(QuantKit): ..."), {"QuantKit"}),
        ((IMPORT, "class It(QuantKit): ..."), set()),
        (("class QuantKit: ...", "class TestIt(QuantKit): ..."), set()),
        (
            (f"{IMPORT} as Kit", "class Base(Kit): ...", "class TestIt(Base): ..."),
            {"QuantKit"},
        ),
    ],
)
def test_only_a_collected_class_of_the_kit_counts(
    tmp_path: Path, lines: tuple[str, ...], used: set[str]
) -> None:
    (tmp_path / "test_it.py").write_text("\n".join(lines))
    assert kits_used(tmp_path) == used
