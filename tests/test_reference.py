"""The reference of hooks and contracts says what the code says."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import pytest

from pegboard.api.hooks import HOOK_SURFACES
from pegboard.api.levels import API_LEVELS


@pytest.fixture(scope="module")
def reference(repo_root: Path) -> ModuleType:
    """The module `scripts/reference.py`."""
    spec = importlib.util.spec_from_file_location("reference", repo_root / "scripts/reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["reference"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def text(repo_root: Path, reference: ModuleType) -> str:
    return (repo_root / reference.PAGE).read_text()


def section(text: str, title: str) -> str:
    """From a heading to the next one of its level or above."""
    level = title.partition(" ")[0]
    _, found, rest = text.partition(f"\n{title}\n")
    assert found, title
    return re.split(rf"^#{{1,{len(level)}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def test_the_page_is_what_the_script_makes_of_the_code(
    repo_root: Path, reference: ModuleType, text: str
) -> None:
    assert text == reference.page(repo_root), "out of date, run `make sync`"


@pytest.mark.parametrize(
    ("file", "old", "new", "shown"),
    [
        ("attention.py", "priority: int = 0", "priority: int = 7", "| `priority` | `int` | `7` |"),
        ("platform_execution.py", "def wait(self)", "def tarry(self)", "* `tarry() -> None`"),
        ("levels.py", '"quant": 0', '"quant": 3', "| [`quant`](#surface-quant) | 3 |"),
    ],
)
def test_a_change_of_the_code_changes_the_page(
    repo_root: Path,
    reference: ModuleType,
    text: str,
    tmp_path: Path,
    file: str,
    old: str,
    new: str,
    shown: str,
) -> None:
    for place in (reference.API, reference.KITS):
        shutil.copytree(repo_root / place, tmp_path / place)
    for place in (reference.FIRST_PARTY, reference.BUILT_IN):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(repo_root / place, tmp_path / place)
    assert reference.page(tmp_path) == text
    changed = tmp_path / reference.API / file
    assert old in changed.read_text()
    changed.write_text(changed.read_text().replace(old, new))
    assert shown in reference.page(tmp_path)
    assert shown not in text


def defined(contract: Any) -> list[str]:
    """Public names of a module that it does not import from another."""
    imports = (node for node in contract.tree.body if isinstance(node, ast.ImportFrom))
    others = {alias.name for node in imports for alias in node.names}
    return [name for name in contract.public if name not in others]


def test_every_public_name_has_a_place(repo_root: Path, reference: ModuleType, text: str) -> None:
    seen = 0
    for name, contract in reference.contracts(repo_root).items():
        for public in defined(contract) if name != "hooks" else ():
            seen += 1
            place = section(text, f"### `pegboard.api.{name}`")
            assert f"#### `{public}`" in place or f"* `{public}" in place, f"{name}.{public}"
    assert seen > 100


def test_every_field_of_a_class_is_listed(
    repo_root: Path, reference: ModuleType, text: str
) -> None:
    seen = 0
    for name, contract in reference.contracts(repo_root).items():
        module = importlib.import_module(f"pegboard.api.{name}")
        for public in defined(contract):
            value = getattr(module, public)
            of_attrs = attrs.fields(value) if attrs.has(value) else ()
            names = [*(f.name for f in of_attrs), *getattr(value, "__struct_fields__", ())]
            if not names:
                continue
            seen += len(names)
            part = section(text, f"### `pegboard.api.{name}`")
            listed = section(part, f"#### `{public}`")
            missing = [n for n in names if not n.startswith("_") and f"| `{n}` |" not in listed]
            assert not missing, f"{name}.{public}: {missing}"
    assert seen > 200


def test_every_surface_is_listed_with_its_level_and_hook(text: str) -> None:
    table = section(text, "## Hooks")
    for hook, surface in HOOK_SURFACES.items():
        row = f"| [`{surface}`](#surface-{surface}) | {API_LEVELS[surface]} | `{hook}` |"
        assert row in table
        assert f"\n## Surface `{surface}`\n" in text


def test_the_kits_that_are_named_exist(text: str) -> None:
    kits = set(re.findall(r"`(pegboard_testkit\.\w+)\.(\w+)`", text))
    assert len(kits) > 8
    for module, name in kits:
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"
