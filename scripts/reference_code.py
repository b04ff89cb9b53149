"""What the generated pages read from syntax trees: contract files, classes, signatures."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from reference_text import paragraphs

__all__ = [
    "API",
    "Contract",
    "assigned",
    "bases",
    "contracts",
    "default_of",
    "descriptor_of",
    "doc_after",
    "exporters",
    "hook_methods",
    "literal",
    "modules_of",
    "signature",
]

API = Path("core/src/pegboard/api")
PARTS = {"attention": ("recurrent",), "connector": ("transfer",)}
"""Beginnings of the names of contract files that belong to a surface and are not named after it."""


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


def signature(node: ast.FunctionDef, method: bool) -> str:
    """As one calls it: without `self`."""
    arguments = ast.unparse(node.args)
    returned = "" if node.returns is None else ast.unparse(node.returns)
    if method:
        own = re.match(r"(?:self|cls)(?:: (\w+))?(, )?(/, )?", arguments)
        arguments = arguments[own.end() :] if own else arguments
        returned = "Self" if own and own[1] and returned == own[1] else returned
    result = f" -> {returned}" if returned else ""
    return f"{node.name}({arguments}){result}"


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


def exporters(contract: Contract, found: dict[str, Contract]) -> list[str]:
    """Other contract files that export what this one defines."""
    module = f"pegboard.api.{contract.name}"
    return [
        other.name
        for other in found.values()
        for node in ast.walk(other.tree)  # what is imported late stands under a condition
        if isinstance(node, ast.ImportFrom) and node.module == module
        if {alias.name for alias in node.names} & set(other.public)
    ]


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
