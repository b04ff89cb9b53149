"""The reference of hooks and contracts says what the code says."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import pytest

from pegboard.api.hooks import HOOK_SURFACES
from pegboard.api.levels import API_LEVELS


@pytest.fixture(scope="module")
def monkeypatch_path() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def reference(repo_root: Path, monkeypatch_path: pytest.MonkeyPatch) -> ModuleType:
    """The module `scripts/reference.py`, which imports its neighbours."""
    monkeypatch_path.syspath_prepend(str(repo_root / "scripts"))
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


def test_the_pages_are_what_the_script_makes_of_the_code(
    repo_root: Path, reference: ModuleType
) -> None:
    made = reference.pages(repo_root)
    assert len(made) == 3
    for place, text in made.items():
        assert (repo_root / place).read_text() == text, f"{place}: out of date, run `make sync`"


def test_what_a_class_takes_over_and_changes_stands_there_once(text: str) -> None:
    window = section(text, "#### `SlidingWindowSpec`")
    [grows] = re.findall(r"^\| `grows` .*$", window, re.MULTILINE)
    assert "| `False` | Blocks held grow" in grows
    assert "* `with_dtype(dtype: str) -> Self`: The specification" in window


def test_what_a_contract_file_says_at_its_head_is_there_whole(text: str) -> None:
    connector = section(text, "### `pegboard.api.connector`")
    assert (
        "\n```text\nengine process " in connector and "\n**Failed loads.** The worker" in connector
    )
    assert "\n```text\n=====" in section(text, "### `pegboard.api.attention`")


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
    imports = (node for node in ast.walk(contract.tree) if isinstance(node, ast.ImportFrom))
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


def cells(text: str, header: str) -> list[list[str]]:
    """Rows of the first table whose first heading is `header`."""
    _, found, rest = text.partition(f"| {header} |")
    assert found, header
    lines = rest.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_guide_lists_every_context_with_all_that_it_has(
    repo_root: Path, reference: ModuleType
) -> None:
    guide = (repo_root / reference.GUIDE).read_text()
    shown = {re.findall(r"`(\w+)`", row[0])[0]: row for row in cells(guide, "context")}
    found = {}
    for name in reference.contracts(repo_root):
        module = importlib.import_module(f"pegboard.api.{name}")
        for value in vars(module).values():
            if attrs.has(value) and "settings" in {field.name for field in attrs.fields(value)}:
                found[value.__name__] = value
    assert shown.keys() == found.keys() and len(found) > 12
    for name, value in found.items():
        properties = {key for key, one in vars(value).items() if isinstance(one, property)}
        has = {field.name for field in attrs.fields(value)} | properties
        listed = {*re.findall(r"`(\w+)`", shown[name][2]), *re.findall(r"`(\w+)`", shown[name][3])}
        assert listed == {key for key in has if not key.startswith("_")}, name


def kits_of(repo_root: Path, reference: ModuleType) -> dict[str, type]:
    """All conformance kits, by name."""
    found = {}
    for path in (repo_root / reference.KITS).glob("*_kit.py"):
        module = importlib.import_module(f"pegboard_testkit.{path.stem}")
        found |= {name: getattr(module, name) for name in module.__all__ if name.endswith("Kit")}
    return found


def test_every_kit_is_listed_with_its_attributes_and_its_checks(
    repo_root: Path, reference: ModuleType
) -> None:
    text = (repo_root / reference.KIT_PAGE).read_text()
    found = kits_of(repo_root, reference)
    assert len(found) > 14 and f"## `{min(found)}`" in text
    seen = 0
    for name, kit in found.items():
        part = section(text, f"## `{name}`")
        others = [base for base in kit.__mro__[1:] if base in found.values()]
        elsewhere = {key for other in others for key in (*dir(other), *annotated(other))}
        for key in {*dir(kit), *annotated(kit)} - elsewhere:
            if key.startswith("test_"):
                assert f"* {key[5:].replace('_', ' ')}" in part, f"{name}: {key}"
            elif key in annotated(kit) and not key.startswith("_"):
                seen += 1
                row = next(row for row in cells(part, "attribute") if row[0] == f"`{key}`")
                assert (row[2] == "must be given") != hasattr(kit, key), f"{name}: {row}"
    assert seen > 30


def annotated(kit: type) -> set[str]:
    """Attributes with a type, inherited ones too."""
    return {key for base in kit.__mro__ for key in inspect.get_annotations(base)}


def test_what_each_attribute_of_a_kit_means_is_said(repo_root: Path, reference: ModuleType) -> None:
    rows = (repo_root / reference.KIT_PAGE).read_text().splitlines()
    silent = [row for row in rows if re.match(r"\| `\w+` \|", row) and row.endswith("|  |")]
    assert not silent
