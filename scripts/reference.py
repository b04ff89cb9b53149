"""Write, or check, `docs/reference-plugins.md`: every hook and contract, read from the code.

    python scripts/reference.py           write (part of `make sync`)
    python scripts/reference.py --check   change nothing; exit 1 if the page is out of date

Contracts are read from their syntax trees. What a section says is what the docstrings say.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
API = Path("core/src/pegboard/api")
KITS = Path("plugins/testkit/src/pegboard_testkit")
FIRST_PARTY = Path("core/src/pegboard/plugins/first_party.json")
BUILT_IN = Path("core/src/pegboard/plugins/builtin.py")
PAGE = Path("docs/reference-plugins.md")
PARTS = {"attention": ("recurrent",), "connector": ("transfer",)}
"""Beginnings of the names of contract files that belong to a surface and are not named after it."""
MORE_KITS = {"model": ("pretrained_kit", "config_kit")}
LONGEST_VALUE = 120
"""Characters of a constant; a longer one is in the code."""
HEAD = """\
# Reference of hooks and contracts

Generated from the code by [`scripts/reference.py`](../scripts/reference.py); `make sync` writes it.
A plugin imports a name from the module that its section is called after, or from the larger one
that exports it, as the section says. How the pieces go together stands in
[writing-a-plugin.md](writing-a-plugin.md), what may change and when in
[compatibility.md](compatibility.md). Tables of the contract files are left out here. A default of
`…` is made for each instance.
"""


@dataclass(frozen=True)
class Contract:
    """One file of `pegboard.api`."""

    path: Path

    @property
    def name(self) -> str:
        """Of the module, without its package."""
        return self.path.stem

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.path.read_text())

    @cached_property
    def public(self) -> tuple[str, ...]:
        """`__all__`."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                return tuple(ast.literal_eval(node.value))
        return ()

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """Every class by its name, private ones too."""
        return {node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef)}


def contracts(root: Path) -> dict[str, Contract]:
    """All contract files by the name of their module."""
    found = sorted((root / API).glob("[a-z]*.py"))
    return {path.stem: Contract(path) for path in found}


def literal(contract: Contract, name: str) -> dict[str, object]:
    """The value of a constant of a contract file that is a dictionary, perhaps behind a proxy."""
    for node in contract.tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            value = node.value.args[0] if isinstance(node.value, ast.Call) else node.value
            return dict(ast.literal_eval(value))
    raise SystemExit(f"{contract.path} has no {name}")


def paragraphs(text: str | None) -> list[str]:
    """Paragraphs of a docstring as Markdown, each on one line; tables are left to the code."""
    parts = re.split(r"\n\s*\n", (text or "").rstrip())
    return [flat(part) for part in parts if part and "====" not in part]


def flat(paragraph: str) -> str:
    """A paragraph on one line; formulas, which are indented, as code spans."""
    lines = paragraph.splitlines()
    if len(lines) > 1 and all(line.startswith("    ") for line in lines):
        return ", ".join(code(line.strip()) for line in lines)
    return re.sub(r"\s+", " ", paragraph.strip()).replace("``", "`")


def first(text: str | None) -> str:
    """The first paragraph."""
    return next(iter(paragraphs(text)), "")


def cell(text: str) -> str:
    """Text for a table."""
    return text.replace("|", "\\|")


def code(text: str) -> str:
    """A code span, or nothing."""
    return f"`{text}`" if text else ""


def listed(shown: str, text: str) -> str:
    """A list entry: code, and what it means."""
    return f"* `{shown}`" + (f": {text}" if text else "")


def doc_after(body: list[ast.stmt], index: int) -> str:
    """The docstring that stands below an assignment."""
    below = body[index + 1] if index + 1 < len(body) else None
    if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
        return " ".join(paragraphs(str(below.value.value)))
    return ""


def default_of(value: ast.expr | None) -> str:
    """A field's default as one writes it; `…` where a factory makes it, empty where none is."""
    if value is None:
        return ""
    if not (isinstance(value, ast.Call) and ast.unparse(value.func).endswith("field")):
        return ast.unparse(value)
    given = {word.arg: word.value for word in value.keywords}
    if "default" in given:
        return ast.unparse(given["default"])
    factory = given.get("factory", given.get("default_factory"))
    made = {"dict": "{}", "list": "[]", "set": "set()", "tuple": "()"}
    return "" if factory is None else made.get(ast.unparse(factory), "…")


def bases(node: ast.ClassDef, contract: Contract) -> list[ast.ClassDef]:
    """The class behind its private bases, whose members it shows as its own."""
    names = [ast.unparse(base) for base in node.bases]
    hidden = [contract.classes[n] for n in names if n.startswith("_") and n in contract.classes]
    return [*(one for base in hidden for one in bases(base, contract)), node]


def fields(node: ast.ClassDef) -> Iterator[str]:
    """Rows of the table of fields."""
    for index, entry in enumerate(node.body):
        if not isinstance(entry, ast.AnnAssign) or ast.unparse(entry.target).startswith("_"):
            continue
        cells = (
            code(ast.unparse(entry.target)),
            code(ast.unparse(entry.annotation)),
            code(default_of(entry.value)),
            doc_after(node.body, index),
        )
        yield f"| {' | '.join(map(cell, cells))} |"


def signature(node: ast.FunctionDef, method: bool) -> str:
    """As one calls it: without `self`."""
    arguments = ast.unparse(node.args)
    if method:
        arguments = re.sub(r"^(self|cls)(, )?(/, )?", "", arguments)
    result = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"{node.name}({arguments}){result}"


def methods(node: ast.ClassDef) -> Iterator[str]:
    """A list entry for each public method and property, with its docstring."""
    for entry in node.body:
        if not isinstance(entry, ast.FunctionDef) or entry.name.startswith("_"):
            continue
        marks = [ast.unparse(mark) for mark in entry.decorator_list]
        shown = signature(entry, method="staticmethod" not in marks)
        if "property" in marks:
            result = "" if entry.returns is None else f": {ast.unparse(entry.returns)}"
            shown = f"{entry.name}{result}"
        text = " ".join(paragraphs(ast.get_docstring(entry)))
        if text or entry.name != "claims":
            yield listed(shown, text)


def class_section(node: ast.ClassDef, contract: Contract) -> Iterator[str]:
    """A class: what it is, its fields, its methods."""
    parts = bases(node, contract)
    yield f"#### `{node.name}`"
    yield "\n\n".join(paragraphs(ast.get_docstring(node)))
    rows = [row for part in parts for row in fields(part)]
    if rows:
        yield "\n".join(("| field | type | default | meaning |", "|---|---|---|---|", *rows))
    calls = [entry for part in parts for entry in methods(part)]
    if calls:
        yield "\n".join(calls)


def assigned(node: ast.stmt) -> list[tuple[str, str]]:
    """Names and values of an assignment, also of several at once."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return [(ast.unparse(node.target), ast.unparse(node.value))]
    if not isinstance(node, ast.Assign):
        return []
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = zip(target.elts, value.elts, strict=True)
        return [(ast.unparse(one), ast.unparse(its)) for one, its in pairs]
    return [(ast.unparse(target), ast.unparse(value))]


def constants(contract: Contract) -> Iterator[str]:
    """A list entry for each public name that is neither class nor function."""
    for index, node in enumerate(contract.tree.body):
        for name, value in assigned(node):
            if name in contract.public:
                shown = f"{name} = {value}" if len(value) <= LONGEST_VALUE else name
                yield listed(shown, doc_after(contract.tree.body, index))


def functions(contract: Contract) -> Iterator[str]:
    """A list entry for each public function."""
    for node in contract.tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in contract.public:
            text = " ".join(paragraphs(ast.get_docstring(node)))
            yield listed(signature(node, method=False), text)


def exporters(contract: Contract, found: dict[str, Contract]) -> list[str]:
    """Other contract files that export what this one defines."""
    module = f"pegboard.api.{contract.name}"
    return [
        other.name
        for other in found.values()
        for node in other.tree.body
        if isinstance(node, ast.ImportFrom) and node.module == module
        if {alias.name for alias in node.names} & set(other.public)
    ]


def module_section(contract: Contract, found: dict[str, Contract]) -> Iterator[str]:
    """One contract file."""
    own = [node for name, node in contract.classes.items() if name in contract.public]
    others = [*constants(contract), *functions(contract)]
    if not own and not others:
        return
    yield f"### `pegboard.api.{contract.name}`"
    text = paragraphs(ast.get_docstring(contract.tree))
    called = [part for part in text[1:] if part.startswith("Called by")]
    file = f"File: [`api/{contract.name}.py`](../{API}/{contract.name}.py)."
    by = " and ".join(f"`pegboard.api.{name}`" for name in exporters(contract, found))
    yield "\n\n".join((*text[:1], *called, f"{file} Exported by {by}." if by else file))
    if others:
        yield "\n".join(others)
    for node in own:
        yield from class_section(node, contract)


def kits(root: Path, surface: str) -> list[str]:
    """Conformance kits of a surface: classes of the testkit."""
    found = []
    for name in (f"{surface}_kit", *MORE_KITS.get(surface, ())):
        path = root / KITS / f"{name}.py"
        tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and re.fullmatch(r"[A-Z]\w*Kit", node.name):
                found.append(f"pegboard_testkit.{name}.{node.name}")
    return found or ["pegboard_testkit.plugin_kit.PluginKit"]


def users(root: Path, surface: str) -> list[str]:
    """First-party distributions that register into a surface, the core among them."""
    listing = json.loads((root / FIRST_PARTY).read_text())
    plugins = sorted(name for name, facts in listing.items() if surface in facts["claims"])
    pairs = ast.walk(ast.parse((root / BUILT_IN).read_text()))
    starts = {ast.unparse(node.elts[0]) for node in pairs if isinstance(node, ast.Tuple)}
    return ["pegboard-core", *plugins] if repr(surface) in starts else plugins


def hook_methods(found: dict[str, Contract]) -> dict[str, ast.FunctionDef]:
    """The hook specifications by name."""
    body = found["hooks"].classes["Hooks"].body
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def descriptor_of(hook: ast.FunctionDef) -> str:
    """The class whose instances a hook returns."""
    returned = "" if hook.returns is None else ast.unparse(hook.returns)
    inner = re.fullmatch(r"Iterable\[(\w+)\]", returned)
    return inner[1] if inner else returned


def modules_of(surface: str, found: dict[str, Contract]) -> list[str]:
    """Contract files of a surface, the main one first."""
    starts = (surface, *PARTS.get(surface, ()))
    named = [n for n in found if any(n == s or n.startswith(f"{s}_") for s in starts)]
    return sorted(named, key=lambda name: (name != surface, name))


def hook_table(root: Path, found: dict[str, Contract]) -> Iterator[str]:
    """The surfaces, one a row."""
    hooks = hook_methods(found)
    levels = literal(found["levels"], "API_LEVELS")
    yield "| surface | API level | hook | descriptor | conformance kit | first-party users |"
    yield "|---|---|---|---|---|---|"
    for hook, surface in literal(found["hooks"], "HOOK_SURFACES").items():
        named = str(surface)
        link = f"[`{named}`](#surface-{named})"
        made = ", ".join(code(kit.rpartition(".")[2]) for kit in kits(root, named))
        used = ", ".join(map(code, users(root, named))) or "none"
        cells = (link, str(levels[named]), code(hook), code(descriptor_of(hooks[hook])), made, used)
        yield f"| {' | '.join(cells)} |"


def surface_section(
    root: Path, surface: str, hook: str, found: dict[str, Contract]
) -> Iterator[str]:
    """One surface: its hook, its kits, its contract files."""
    node, level = hook_methods(found)[hook], literal(found["levels"], "API_LEVELS")[surface]
    yield f"## Surface `{surface}`"
    facts = (
        f"API level: {level}, declared as `PEGBOARD_API = {{{json.dumps(surface)}: {level}}}`",
        f"hook: `{signature(node, method=True)}`: {first(ast.get_docstring(node))}",
        f"conformance kit: {', '.join(map(code, kits(root, surface)))}",
        f"first-party users: {', '.join(map(code, users(root, surface))) or 'none'}",
    )
    yield "\n".join(f"* {fact}" for fact in facts)
    for name in modules_of(surface, found):
        yield from module_section(found[name], found)


def other_hooks(found: dict[str, Contract]) -> str:
    """The hooks that belong to no surface."""
    surfaces = literal(found["hooks"], "HOOK_SURFACES")
    lines = []
    for name, node in hook_methods(found).items():
        if name not in surfaces:
            text = " ".join(paragraphs(ast.get_docstring(node)))
            lines.append(f"* `{signature(node, method=True)}`: {text}")
    return "Two hooks belong to no surface:\n\n" + "\n".join(lines)


def page(root: Path) -> str:
    """The whole text."""
    found = contracts(root)
    parts = [HEAD.rstrip(), "## Hooks", "\n".join(hook_table(root, found)), other_hooks(found)]
    shown = {"hooks"}
    for hook, named in literal(found["hooks"], "HOOK_SURFACES").items():
        parts += surface_section(root, str(named), hook, found)
        shown.update(modules_of(str(named), found))
    parts.append("## Shared values")
    for name in sorted(found.keys() - shown):
        parts += module_section(found[name], found)
    return "\n\n".join(part for part in parts if part) + "\n"


def main() -> int:
    """Command line entry; returns the exit status."""
    parser = argparse.ArgumentParser(description="Generate the reference of hooks and contracts.")
    parser.add_argument("--check", action="store_true", help="change nothing, report a difference")
    check, target, text = parser.parse_args().check, ROOT / PAGE, page(ROOT)
    if target.is_file() and target.read_text() == text:
        return 0
    if check:
        print(f"{PAGE}: out of date, run `make sync`")
        return 1
    target.write_text(text)
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
