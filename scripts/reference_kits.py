"""`docs/reference-kits.md`: what an author gives to each conformance kit, and what it checks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from reference_code import Contract, default_of, doc_after, signature
from reference_text import blocks, cell, code, listed, paragraphs

__all__ = ["KITS", "KIT_PAGE", "kit_page"]

KITS = Path("plugins/testkit/src/pegboard_testkit")
KIT_PAGE = Path("docs/reference-kits.md")
HEAD = """\
# Reference of conformance kits

Generated from the code of [`pegboard-testkit`](../plugins/testkit) by
[`scripts/reference.py`](../scripts/reference.py); `make sync` writes it. A test file subclasses a
kit under a name that begins with `Test`, and sets attributes and defines methods in the class. What
must be given is marked; everything else has a default that fits most plugins. Each check is a test
of that class, and a message of a failed one says what the plugin did.
"""


def kit_page(root: Path) -> str:
    """The whole text."""
    modules = [Contract(path) for path in sorted((root / KITS).glob("*.py"))]
    classes = {name: node for one in modules for name, node in one.classes.items()}
    parts = [HEAD.rstrip()]
    for module in modules:
        for name in module.public:
            if is_kit(name) and name in module.classes:
                parts += section(module, module.classes[name], classes)
    return "\n\n".join(part for part in parts if part) + "\n"


def is_kit(name: str) -> bool:
    """Whether a class is one that authors subclass."""
    return re.fullmatch(r"[A-Z]\w*Kit", name) is not None


def section(
    module: Contract, node: ast.ClassDef, classes: dict[str, ast.ClassDef]
) -> Iterator[str]:
    """One kit."""
    yield f"## `{node.name}`"
    parents = [ast.unparse(base) for base in node.bases]
    more = "".join(f" All of [`{n}`](#{n.lower()}) belongs to it." for n in parents if is_kit(n))
    yield f"`from pegboard_testkit.{module.name} import {node.name}`.{more}"
    yield from blocks(ast.get_docstring(module.tree) or "", "python")
    parts = list(lineage(node, classes))
    rows = [row for part in parts for row in attributes(part)]
    if rows:
        yield "\n".join(("| attribute | type | default | meaning |", "|---|---|---|---|", *rows))
    given = [row for part in parts for row in methods(part)]
    if given:
        yield "Methods and fixtures that may be used, or defined otherwise:"
        yield "\n".join(given)
    tests = [row for part in parts for row in checks(part)]
    if tests:
        yield "What it checks:"
        yield "\n".join(tests)


def lineage(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> Iterator[ast.ClassDef]:
    """The class, and those of the testkit that it derives from and that are no kits themselves."""
    yield node
    for base in map(ast.unparse, node.bases):
        if base in classes and not is_kit(base):
            yield from lineage(classes[base], classes)


def attributes(node: ast.ClassDef) -> Iterator[str]:
    """Rows of the table of attributes."""
    for index, entry in enumerate(node.body):
        if isinstance(entry, ast.AnnAssign):
            name, kind = ast.unparse(entry.target), ast.unparse(entry.annotation)
        elif isinstance(entry, ast.Assign):
            name, kind = ast.unparse(entry.targets[0]), ""
        else:
            continue
        if not name.startswith("_"):
            usual = code(default_of(entry.value)) or "must be given"
            cells = (code(name), code(kind), usual, doc_after(node.body, index))
            yield f"| {' | '.join(map(cell, cells))} |"


def methods(node: ast.ClassDef) -> Iterator[str]:
    """A list entry for each public method and fixture that is no test and says what it is."""
    for entry in node.body:
        if not isinstance(entry, ast.FunctionDef) or entry.name.startswith(("_", "test_")):
            continue
        text = " ".join(paragraphs(ast.get_docstring(entry)))
        if any("fixture" in ast.unparse(mark) for mark in entry.decorator_list):
            yield listed(entry.name, f"fixture. {text}")
        elif text:
            must = "must define" in ast.unparse(entry)
            yield listed(signature(entry, method=True), f"must be given. {text}" if must else text)


def checks(node: ast.ClassDef) -> Iterator[str]:
    """A list entry for each test, which is called what it checks."""
    for entry in node.body:
        if isinstance(entry, ast.FunctionDef) and entry.name.startswith("test_"):
            words = entry.name.removeprefix("test_").replace("_", " ")
            text = " ".join(paragraphs(ast.get_docstring(entry)))
            yield f"* {words}" + (f". {text}" if text else "")
