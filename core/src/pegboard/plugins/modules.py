"""Finding modules and reading their source without importing them."""

from __future__ import annotations

import ast
import os
import sys
from importlib.machinery import ModuleSpec

from pegboard.errors import PluginError

__all__ = ["find_module", "forget_module", "parse_module"]


def find_module(name: str) -> ModuleSpec | None:
    """Spec of a module, or None.

    Unlike `importlib.util.find_spec` this never imports the parent packages.
    """
    path: list[str] | None = None
    spec: ModuleSpec | None = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        spec = _ask_finders(".".join(parts[:depth]), path)
        if spec is None:
            return None
        locations = spec.submodule_search_locations
        if locations is None and depth < len(parts):
            return None
        path = list(locations or ())
    return spec


def forget_module(name: str) -> None:
    """Unload a module with all that is below it, as if it was never imported."""
    for one in [*sys.modules]:
        if one == name or one.startswith(f"{name}."):
            del sys.modules[one]


def _ask_finders(name: str, path: list[str] | None) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        find_spec = getattr(finder, "find_spec", None)
        spec = find_spec(name, path) if find_spec is not None else None
        if spec is not None:
            return spec  # type: ignore[no-any-return]
    return None


def parse_module(name: str) -> tuple[ast.Module, ModuleSpec]:
    """Syntax tree of a module that is not imported, and where it was found.

    Raises `PluginError` if the module or its source cannot be found, or does not parse.
    """
    spec = find_module(name)
    if spec is None:
        raise PluginError(f"module {name!r} is not found; is the distribution complete?")
    try:
        source = _source(spec)
        if source is None:
            raise PluginError(f"module {name!r} has no Python source to read its API level from")
        return ast.parse(source, filename=spec.origin or name), spec
    except (OSError, SyntaxError, ValueError, ImportError) as error:
        raise PluginError(f"source of module {name!r} cannot be read: {error}") from error


def _source(spec: ModuleSpec) -> bytes | str | None:
    if spec.origin and spec.origin.endswith(".py") and os.path.isfile(spec.origin):
        with open(spec.origin, "rb") as file:
            return file.read()
    get_source = getattr(spec.loader, "get_source", None)
    return get_source(spec.name) if get_source is not None else None
