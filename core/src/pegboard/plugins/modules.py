"""Finding modules without importing them, and the distribution that a module belongs to."""

from __future__ import annotations

import ast
import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from urllib.parse import unquote, urlparse

from importlib_metadata import Distribution

from pegboard.errors import PluginError

__all__ = ["find_module", "parse_module", "provides"]


def find_module(name: str) -> ModuleSpec | None:
    """Spec of a module, or None. Unlike `importlib.util.find_spec` this never imports the parent packages."""
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


def _ask_finders(name: str, path: list[str] | None) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        find_spec = getattr(finder, "find_spec", None)
        spec = find_spec(name, path) if find_spec is not None else None
        if spec is not None:
            return spec  # type: ignore[no-any-return]
    return None


def parse_module(name: str) -> ast.Module:
    """Syntax tree of a module that is not imported.

    Raises `PluginError` if the module or its source cannot be found, or does not parse.
    """
    spec = find_module(name)
    if spec is None:
        raise PluginError(f"module {name!r} is not found; is the distribution complete?")
    try:
        source = _source(spec)
        if source is None:
            raise PluginError(f"module {name!r} has no Python source to read its API level from")
        return ast.parse(source, filename=spec.origin or name)
    except (OSError, SyntaxError, ValueError, ImportError) as error:
        raise PluginError(f"source of module {name!r} cannot be read: {error}") from error


def _source(spec: ModuleSpec) -> bytes | str | None:
    if spec.origin and spec.origin.endswith(".py") and Path(spec.origin).is_file():
        return Path(spec.origin).read_bytes()
    get_source = getattr(spec.loader, "get_source", None)
    return get_source(spec.name) if get_source is not None else None


def provides(distribution: Distribution, file: Path) -> bool:
    """Whether `file` was installed by `distribution`, an editable install included."""
    folder = _editable_folder(distribution)
    if folder is not None and folder in file.parents:
        return True
    files = distribution.files
    if files is None:
        return _top_level_match(distribution, file)
    same_name = (entry for entry in files if entry.name == file.name)
    return any(Path(str(distribution.locate_file(entry))).resolve() == file for entry in same_name)


def _editable_folder(distribution: Distribution) -> Path | None:
    """The source folder of an editable install (PEP 610), or None."""
    try:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        if not origin.get("dir_info", {}).get("editable"):
            return None
        return Path(unquote(urlparse(origin["url"]).path)).resolve()
    except (ValueError, KeyError, AttributeError, OSError):
        return None


def _top_level_match(distribution: Distribution, file: Path) -> bool:
    """For metadata without a file list: the first folder or module name below the install root decides."""
    root = Path(str(distribution.locate_file(""))).resolve()
    if root not in file.parents:
        return False
    first = file.relative_to(root).parts[0].removesuffix(".py")
    listed = (distribution.read_text("top_level.txt") or "").split()
    named = {entry.value.partition(":")[0].split(".")[0] for entry in distribution.entry_points}
    return first in named.union(listed)
