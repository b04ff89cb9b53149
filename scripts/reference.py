"""Write, or check, the pages that are read from the code: `docs/reference-plugins.md` (hooks and
contracts), `docs/reference-kits.md`, and the table of contexts in `docs/writing-a-plugin.md`.

    python scripts/reference.py           write (part of `make sync`)
    python scripts/reference.py --check   change nothing; exit 1 if a page is out of date

Syntax trees are read, nothing is imported. What a section says is what the docstrings say.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from reference_code import (
    API,
    Contract,
    assigned,
    bases,
    contracts,
    default_of,
    descriptor_of,
    doc_after,
    exporters,
    hook_methods,
    literal,
    modules_of,
    signature,
)
from reference_contexts import GUIDE, guide
from reference_kits import KIT_PAGE, KITS, kit_page
from reference_text import blocks, cell, code, first, listed, paragraphs

ROOT = Path(__file__).resolve().parent.parent
FIRST_PARTY = Path("core/src/pegboard/plugins/first_party.json")
BUILT_IN = Path("core/src/pegboard/plugins/builtin.py")
PAGE = Path("docs/reference-plugins.md")
MORE_KITS = {"model": ("pretrained_kit", "config_kit")}
LONGEST_VALUE = 120
"""Characters of a constant; a longer one is in the code."""
HEAD = """\
# Reference of hooks and contracts

Generated from the code by [`scripts/reference.py`](../scripts/reference.py); `make sync` writes it.
A plugin imports a name from the module that its section is called after, or from the larger one
that exports it, as the section says. How the pieces go together stands in
[writing-a-plugin.md](writing-a-plugin.md), what may change and when in
[compatibility.md](compatibility.md). A default of `…` is made for each instance.
"""


def fields(parts: list[ast.ClassDef]) -> Iterator[str]:
    """Rows of the table of fields: of each the last default, and what was last said of it."""
    found: dict[str, tuple[str, str, str]] = {}
    for node in parts:
        for index, entry in enumerate(node.body):
            if not isinstance(entry, ast.AnnAssign) or ast.unparse(entry.target).startswith("_"):
                continue
            name = ast.unparse(entry.target)
            meaning = doc_after(node.body, index) or found.get(name, ("", "", ""))[2]
            found[name] = (ast.unparse(entry.annotation), default_of(entry.value), meaning)
    for name, (kind, usual, meaning) in found.items():
        yield f"| {' | '.join(map(cell, (code(name), code(kind), code(usual), meaning)))} |"


def methods(parts: list[ast.ClassDef]) -> Iterator[str]:
    """A list entry for each public method and property: the last form, and what was last said."""
    found: dict[str, tuple[str, str]] = {}
    for entry in (entry for node in parts for entry in node.body):
        if not isinstance(entry, ast.FunctionDef) or entry.name.startswith("_"):
            continue
        marks = [ast.unparse(mark) for mark in entry.decorator_list]
        shown = signature(entry, method="staticmethod" not in marks)
        if "property" in marks:
            result = "" if entry.returns is None else f": {ast.unparse(entry.returns)}"
            shown = f"{entry.name}{result}"
        text = " ".join(paragraphs(ast.get_docstring(entry)))
        found[entry.name] = (shown, text or found.get(entry.name, ("", ""))[1])
    for name, (shown, text) in found.items():
        if text or name != "claims":
            yield listed(shown, text)


def class_section(node: ast.ClassDef, contract: Contract) -> Iterator[str]:
    """A class: what it is, its fields, its methods."""
    parts = bases(node, contract)
    yield f"#### `{node.name}`"
    yield "\n\n".join(blocks(ast.get_docstring(node), "text"))
    rows = list(fields(parts))
    if rows:
        yield "\n".join(("| field | type | default | meaning |", "|---|---|---|---|", *rows))
    calls = list(methods(parts))
    if calls:
        yield "\n".join(calls)


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


def module_section(contract: Contract, found: dict[str, Contract]) -> Iterator[str]:
    """One contract file."""
    own = [node for name, node in contract.classes.items() if name in contract.public]
    others = [*constants(contract), *functions(contract)]
    if not own and not others:
        return
    yield f"### `pegboard.api.{contract.name}`"
    text = blocks(ast.get_docstring(contract.tree), "text")
    file = f"File: [`api/{contract.name}.py`](../{API}/{contract.name}.py)."
    by = " and ".join(f"`pegboard.api.{name}`" for name in exporters(contract, found))
    yield "\n\n".join((*text, f"{file} Exported by {by}." if by else file))
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


def pages(root: Path) -> dict[Path, str]:
    """Everything that is written, by its place."""
    return {PAGE: page(root), KIT_PAGE: kit_page(root), GUIDE: guide(root)}


def main() -> int:
    """Command line entry; returns the exit status."""
    parser = argparse.ArgumentParser(description="Generate the reference of plugins.")
    parser.add_argument("--check", action="store_true", help="change nothing, report a difference")
    check, late = parser.parse_args().check, False
    for place, text in pages(ROOT).items():
        target = ROOT / place
        if target.is_file() and target.read_text() == text:
            continue
        late = True
        if check:
            print(f"{place}: out of date, run `make sync`")
        else:
            target.write_text(text)
            print(f"wrote {place}")
    return int(check and late)


if __name__ == "__main__":
    sys.exit(main())
