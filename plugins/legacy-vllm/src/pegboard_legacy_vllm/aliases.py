"""Whether a model that a package registers is one that Pegboard has, under another name.

It is if the class is one of vLLM's own, or derives from one and adds nothing. The source of a class
that is named by module path is read and not run: it would import torch.
"""

from __future__ import annotations

import ast
from importlib.util import find_spec
from typing import Any

from pegboard_legacy_vllm.refusal import RefusedError
from pegboard_legacy_vllm.stand_ins import MODELS, Architecture

__all__ = ["known_as"]

_OF_CLASSES = ("__module__", "__doc__", "__qualname__", "__firstlineno__", "__static_attributes__")


def known_as(package: str, architecture: str, model: Any) -> str:
    """The architecture that a registered model is. Raises `RefusedError` if it is code."""
    if isinstance(model, str):
        module, _, name = model.partition(":")
        if module.startswith(f"{MODELS}."):
            return name
        found = _of_source(module, name)
    elif isinstance(model, type):
        module, name = model.__module__, model.__qualname__
        found = _of_class(model)
    else:
        raise RefusedError(package, f"registers {model!r} as the model {architecture}")
    if found is None:
        raise RefusedError(
            package,
            f"registers its own model class {module}:{name} as {architecture}, which is code for "
            "vLLM's layers; only another name for one of vLLM's models can be run",
        )
    return found


def _of_class(model: type) -> str | None:
    if not issubclass(model, Architecture) or model is Architecture:
        return None
    line = [c for c in model.__mro__ if issubclass(c, Architecture) and c is not Architecture]
    name = next(c.__name__ for c in line if c.__module__.startswith(f"{MODELS}."))
    own = [c for c in model.__mro__ if c not in line and c not in (Architecture, object)]
    added = [c for c in line if not c.__module__.startswith(f"{MODELS}.") and _adds(c)]
    return None if own or added else name


def _adds(cls: type) -> bool:
    inherited = (*_OF_CLASSES, "__abstractmethods__", "_abc_impl")
    return bool(set(vars(cls)) - set(inherited))


def _of_source(module: str, name: str) -> str | None:
    spec = find_spec(module)
    source = None if spec is None or spec.loader is None else getattr(spec.loader, "get_source", "")
    if not callable(source):
        return None
    tree = ast.parse(source(module) or "")
    imported = {
        alias.asname or alias.name: alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{MODELS}.")
        for alias in node.names
    }
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            bases = [ast.unparse(base) for base in node.bases]
            plain = not node.decorator_list and all(map(_says_nothing, node.body))
            return imported.get(bases[0]) if plain and len(bases) == 1 else None
    return imported.get(name)


def _says_nothing(node: ast.stmt) -> bool:
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return text or isinstance(node, ast.Pass)
