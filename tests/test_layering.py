"""Who may import whom, read from the syntax trees of all members."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TORCH_FREE_ALWAYS = ("engine", "kv", "scheduler")
TORCH_FREE_AT_START = ("cli", "config", "plugins", "text")
PUBLIC_DOORS = ("api", "errors", "nn", "testing")
ROOMS = (
    *("api", "cli", "config", "engine", "kv", "nn", "plugins", "runner", "sampling"),
    *("scheduler", "testing", "text", "weights"),
)
LONGEST_FUNCTION = 60
LONGEST_CONTRACT = 160
LONG_CONTRACTS = {"params.py"}
"""Sampling parameters are one thing, with one check after the other; every surface has a hook."""
IMPORT_NAMES = {
    "flash_attn": "flash-attn-4",
    "opentelemetry": "opentelemetry-api",
    "pil": "pillow",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}


@dataclass(frozen=True)
class Import:
    """One imported name: `from a.b import c` gives module `a.b` and name `c`."""

    module: str
    name: str
    lazy: bool
    """Inside a function."""
    typing: bool
    """Under `if TYPE_CHECKING`."""
    line: int

    @property
    def root(self) -> str:
        return self.module.partition(".")[0]


def is_typing_guard(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def read_imports(tree: ast.AST, package: str) -> Iterator[Import]:
    """All imports of a module that lies in `package`; relative ones are made absolute."""

    def visit(node: ast.AST, lazy: bool, typing: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, "", lazy, typing, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(module, alias.name, lazy, typing, node.lineno)
        elif is_typing_guard(node):
            for child in node.body:
                yield from visit(child, lazy, True)
            for child in node.orelse:
                yield from visit(child, lazy, typing)
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for child in ast.iter_child_nodes(node):
                yield from visit(child, lazy or inside, typing)

    yield from visit(tree, False, False)


def source_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def imports_of(path: Path, source_root: Path) -> list[Import]:
    package = ".".join(path.relative_to(source_root).parent.parts)
    return list(read_imports(ast.parse(path.read_text()), package))


def report(path: Path, root: Path, found: Import, why: str) -> str:
    return f"{path.relative_to(root)}:{found.line} imports {found.module} {found.name}: {why}"


def core_imports(workspace: ModuleType, *rooms: str) -> Iterator[tuple[Path, Import]]:
    source = workspace.ROOT / "core" / "src"
    for room in rooms:
        for path in source_files(source / "pegboard" / room):
            for found in imports_of(path, source):
                yield path, found


def plugins(workspace: ModuleType) -> list[Any]:
    return [member for member in workspace.members(workspace.ROOT) if not member.is_core]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import torch.nn", Import("torch.nn", "", False, False, 1)),
        ("from . import block", Import("pegboard.kv", "block", False, False, 1)),
        ("from ..nn.rope import f", Import("pegboard.nn.rope", "f", False, False, 1)),
        ("def f():\n    import torch", Import("torch", "", True, False, 2)),
        ("if TYPE_CHECKING:\n    import torch", Import("torch", "", False, True, 2)),
        ("if typing.TYPE_CHECKING:\n    import torch", Import("torch", "", False, True, 2)),
        ("try:\n    import torch\nexcept E: x", Import("torch", "", False, False, 2)),
    ],
)
def test_the_reader_sees_every_form_of_import(code: str, expected: Import) -> None:
    assert list(read_imports(ast.parse(code), "pegboard.kv")) == [expected]


def test_the_api_imports_of_pegboard_only_itself_and_the_errors(workspace: ModuleType) -> None:
    seen = [(path, found) for path, found in core_imports(workspace, "api")]
    wrong = [
        report(path, workspace.ROOT, found, "api may import pegboard.api and pegboard.errors only")
        for path, found in seen
        if found.root == "pegboard"
        and not re.fullmatch(r"pegboard\.(errors|api(\..+)?)", found.module)
        and (found.module, found.name) not in {("pegboard", "errors"), ("pegboard", "api")}
    ]
    assert seen
    assert not wrong, "\n".join(wrong)


def test_the_api_names_torch_for_type_checking_only(workspace: ModuleType) -> None:
    wrong = [
        report(path, workspace.ROOT, found, "torch only under TYPE_CHECKING")
        for path, found in core_imports(workspace, "api")
        if found.root in {"torch", "triton"} and not found.typing
    ]
    assert not wrong, "\n".join(wrong)


def test_a_contract_file_can_be_read_at_one_go(workspace: ModuleType) -> None:
    files = source_files(workspace.ROOT / "core/src/pegboard/api")
    lengths = {path.name: len(path.read_text().splitlines()) for path in files}
    long = {name for name, lines in lengths.items() if lines > LONGEST_CONTRACT}
    assert len(lengths) > 30
    assert long == LONG_CONTRACTS, {name: lengths[name] for name in long}


def test_the_planning_rooms_never_import_torch(workspace: ModuleType) -> None:
    wrong = [
        report(path, workspace.ROOT, found, "this room holds no tensors")
        for path, found in core_imports(workspace, *TORCH_FREE_ALWAYS)
        if found.root in {"torch", "triton"} and not found.typing
    ]
    assert not wrong, "\n".join(wrong)


def test_the_quick_rooms_import_torch_at_most_when_used(workspace: ModuleType) -> None:
    wrong = [
        report(path, workspace.ROOT, found, "import torch where it is used, or not at all")
        for path, found in core_imports(workspace, *TORCH_FREE_AT_START)
        if found.root in {"torch", "triton"} and not found.typing and not found.lazy
    ]
    assert not wrong, "\n".join(wrong)


def test_every_room_of_the_core_is_known_here(workspace: ModuleType) -> None:
    package = workspace.ROOT / "core" / "src" / "pegboard"
    found = {path.parent.relative_to(package).parts[0] for path in package.glob("*/**/*.py")}
    assert found <= set(ROOMS), "add the room to ROOMS and decide what it may import"


def test_the_core_imports_and_names_no_plugin(workspace: ModuleType) -> None:
    names = [name for item in plugins(workspace) for name in (item.distribution, item.module)]
    pattern = re.compile("|".join(re.escape(name) for name in names))
    source = workspace.ROOT / "core" / "src"
    wrong = []
    for path in source_files(source):
        wrong += [f"{path}: names {match}" for match in pattern.findall(path.read_text())]
        wrong += [
            report(path, workspace.ROOT, found, "the core imports no plugin")
            for found in imports_of(path, source)
            if found.root.startswith("pegboard_")
        ]
    assert names
    assert not wrong, "\n".join(wrong)


def door_fault(found: Import) -> str:
    """Why a plugin may not import this part of Pegboard; empty if it may."""
    parts = found.module.split(".")
    inside = [*parts[1:], *([found.name] if found.name else [])]
    if any(part.startswith("_") and not part.startswith("__") for part in inside):
        return "a private name"
    room = inside[0] if inside else ""
    if len(parts) > 1 and room not in PUBLIC_DOORS:
        return f"plugins use pegboard and {', '.join(f'pegboard.{d}' for d in PUBLIC_DOORS)}"
    if room in ROOMS and room not in PUBLIC_DOORS:
        return "a room of the core that is not public"
    return ""


@pytest.mark.parametrize(
    ("module", "name", "allowed"),
    [
        ("pegboard", "LLM", True),
        ("pegboard.api.model", "ModelFamily", True),
        ("pegboard", "nn", True),
        ("pegboard", "scheduler", False),
        ("pegboard.kv.pool", "BlockPool", False),
        ("pegboard.logging", "get_logger", False),
        ("pegboard.nn", "_hidden", False),
        ("pegboard.nn._hidden", "x", False),
    ],
)
def test_the_public_door_is_drawn_where_it_should_be(module: str, name: str, allowed: bool) -> None:
    assert (door_fault(Import(module, name, False, False, 1)) == "") is allowed


def test_plugins_use_only_the_public_door(workspace: ModuleType) -> None:
    wrong = []
    for member in plugins(workspace):
        folder = workspace.ROOT / member.folder
        for path in source_files(folder):
            source = folder / "src" if "src" in path.relative_to(folder).parts else folder
            wrong += [
                report(path, workspace.ROOT, found, door_fault(found))
                for found in imports_of(path, source)
                if found.root == "pegboard" and door_fault(found)
            ]
    assert not wrong, "\n".join(wrong)


def test_plugins_know_no_other_plugin(workspace: ModuleType) -> None:
    wrong = []
    for member in plugins(workspace):
        for kind, allowed in (
            ("src", {member.module}),
            ("tests", {member.module, "pegboard_testkit"}),
        ):
            folder = workspace.ROOT / member.folder / kind
            wrong += [
                report(path, workspace.ROOT, found, "another plugin")
                for path in source_files(folder)
                for found in imports_of(path, folder)
                if found.root.startswith("pegboard_") and found.root not in allowed
            ]
    assert not wrong, "\n".join(wrong)


def test_members_declare_what_they_import(workspace: ModuleType) -> None:
    wrong = []
    for member in workspace.members(workspace.ROOT):
        project = member.data["project"]
        extras = project.get("optional-dependencies", {}).values()
        lines = [*project["dependencies"], *(line for extra in extras for line in extra)]
        declared = {normal(re.split(r"[^\w.-]", line)[0]) for line in lines}
        known = {"pegboard", member.module, *sys.stdlib_module_names}
        source = member.package.parent
        for path in source_files(source):
            for found in imports_of(path, source):
                wanted = normal(IMPORT_NAMES.get(found.root.lower(), found.root))
                if found.root not in known and wanted not in declared and not found.typing:
                    wrong.append(report(path, workspace.ROOT, found, "not in its dependencies"))
    assert not wrong, "\n".join(wrong)


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None and first.end_lineno is not None:
        lines -= first.end_lineno - first.lineno + 1
    return lines


def test_functions_are_short_outside_kernels(workspace: ModuleType) -> None:
    root = workspace.ROOT
    sources = [member.package for member in workspace.members(root)]
    paths = [path for source in (*sources, root / "scripts") for path in source_files(source)]
    wrong = []
    for path in paths:
        if any(part.startswith("kernel") for part in path.relative_to(root).parts):
            continue
        wrong += [
            f"{path.relative_to(root)}:{node.lineno} {node.name}: {code_lines(node)} lines"
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and code_lines(node) > LONGEST_FUNCTION
        ]
    assert len(paths) > 10
    assert not wrong, "\n".join(wrong)


def mixed_tuples(code: str) -> list[str]:
    """Classes made by `NamedTuple` and something else, which Python 3.10 refuses."""
    classes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ClassDef)]
    names = {one.name: [ast.unparse(base) for base in one.bases] for one in classes}
    return [name for name, bases in names.items() if "NamedTuple" in bases and len(bases) > 1]


def test_classes_are_such_as_the_oldest_python_can_make(workspace: ModuleType) -> None:
    assert mixed_tuples("class A(NamedTuple, Generic[T]): x: T\nclass B(NamedTuple): x: int") == [
        "A"
    ]
    packages = [member.package for member in workspace.members(workspace.ROOT)]
    files = [path for package in packages for path in source_files(package)]
    found = {str(path): mixed_tuples(path.read_text()) for path in files}
    assert len(found) > 300
    assert not {path: names for path, names in found.items() if names}
