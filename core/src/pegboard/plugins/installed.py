"""The files of installed distributions, read as they lie there.

Only locks need this module, and nothing imports it at start-up. What a distribution's RECORD says
of hashes is never believed: it gives names, to which come whatever else would be imported in the
distribution's place.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib.machinery import all_suffixes

import attrs

from pegboard.plugins.discover import distribution_name
from pegboard.plugins.modules import find_module
from pegboard.plugins.scan import Metadata, MetadataFolder, headers, scan

__all__ = ["EDITABLE", "Installed", "find_installed", "is_editable"]

EDITABLE = "editable install, whose files are those of a source folder"
"""One of the problems."""

_UNLOCKED = ("__pycache__",)
_METADATA = (".dist-info", ".egg-info", ".data")
_READ = ("METADATA", "entry_points.txt")
_CHUNK = 1 << 20


@attrs.frozen
class Installed:
    """One distribution on the path."""

    name: str
    """In normal form."""
    version: str
    root: str
    """Folder of the installation."""
    folder: str | None
    """Of its metadata; None where that is no folder."""
    listed: tuple[str, ...] | None
    """Names in RECORD, relative to `root`; None where there is none."""
    editable: bool

    def problem(self) -> str:
        """Why its files cannot be told for sure, or empty."""
        if self.editable:
            return EDITABLE
        if self.folder is None or self.listed is None:
            return "no list of installed files (RECORD)"
        return ""

    def hashes(
        self, further: Iterable[str] = (), search_path: Sequence[str] | None = None
    ) -> dict[str, str]:
        """SHA-256 of every file that is there, by name: of those that RECORD lists or that are
        named by `further`, of its metadata, and of others that lie in its packages or would be
        imported in place of its modules, but for what other distributions keep in a namespace that
        they share with it."""
        named = (*(self.listed or ()), *self._about(), *further)
        known = {name for name in named if not _unlocked(name)}
        found = {name: path for name in known if os.path.isfile(path := self._path(name))}
        beside = {name: self._path(name) for name in self._beside() if name not in known}
        shared = {name for name in beside if not _in_own_package(name, known)}
        if shared:
            owned = _owned_by_others(self, search_path)
            shared = {name for name in shared if os.path.realpath(beside[name]) in owned}
        found |= {name: path for name, path in beside.items() if name not in shared}
        return {name: _sha256(found[name]) for name in sorted(found)}

    def missing(self) -> list[str]:
        """Files that RECORD lists and that are not there."""
        names = (name for name in self.listed or () if not _unlocked(name))
        return sorted(name for name in names if not os.path.isfile(self._path(name)))

    def misplaced(self, modules: Iterable[str], files: Collection[str]) -> list[tuple[str, str]]:
        """(module, file) of the modules, their packages and the distribution's other packages that
        would not be imported from one of `files`, names of files that belong to it."""
        own = {os.path.realpath(self._path(name)) for name in files}
        names = {*self._import_names()}
        for module in modules:
            parts = module.split(".")
            names |= {".".join(parts[: depth + 1]) for depth in range(len(parts))}
        found = []
        for name in sorted(names):
            spec = find_module(name)
            origin = spec.origin if spec is not None and spec.has_location else None
            if origin is not None and os.path.realpath(origin) not in own:
                found.append((name, origin))
        return found

    def _about(self) -> Iterator[str]:
        """Names of the files that say what there is to load."""
        place = os.path.relpath(self.folder or self.root, self.root).replace(os.sep, "/")
        yield from (f"{place}/{name}" for name in _READ)

    def _path(self, name: str) -> str:
        return os.path.normpath(os.path.join(self.root, *name.split("/")))

    def _import_names(self) -> set[str]:
        """First names of what its files would be imported as."""
        names = set()
        for name in self.listed or ():
            first, slash, _ = name.partition("/")
            stem, dot, _ = first.partition(".")
            if not stem.isidentifier() or first.endswith(_METADATA):
                continue
            if (slash and not dot) or (not slash and name.endswith(tuple(all_suffixes()))):
                names.add(stem)
        return names

    def _beside(self) -> Iterator[str]:
        """Names of all files that importing one of its packages or modules could read."""
        for name in self._import_names():
            yield from (name + s for s in all_suffixes() if os.path.isfile(self._path(name + s)))
            yield from self._inside(name)

    def _inside(self, package: str) -> Iterator[str]:
        seen = set()
        for folder, below, files in os.walk(self._path(package), followlinks=True):
            below[:] = [name for name in below if name not in _UNLOCKED]
            real = os.path.realpath(folder)
            if real in seen:  # a link that leads back
                below.clear()
                continue
            seen.add(real)
            place = os.path.relpath(folder, self.root).replace(os.sep, "/")
            yield from (f"{place}/{name}" for name in files)


def find_installed(
    names: Collection[str],
    search_path: Sequence[str] | None = None,
    groups: Collection[str] = (),
) -> Mapping[str, Installed]:
    """The distributions of these names, in normal form, as discovery takes them: the first on the
    path that has plugins, of our groups or of these further ones."""
    found: dict[str, Installed] = {}
    for metadata in scan(search_path):
        text = metadata.read_text("entry_points.txt") or ""
        if not any(group in text for group in ("pegboard.", *groups)):
            continue
        name = distribution_name(metadata)
        if name is not None and name in names and name not in found:
            found[name] = _read(name, metadata)
    return found


def is_editable(metadata: Metadata) -> bool:
    """Whether the files are those of a source folder (PEP 610)."""
    try:
        origin = json.loads(metadata.read_text("direct_url.json") or "{}")
        return bool(origin.get("dir_info", {}).get("editable"))
    except (ValueError, AttributeError):
        return False


def _read(name: str, metadata: Metadata) -> Installed:
    return Installed(
        name=name,
        version=headers(metadata).get("version", [""])[0],
        root=os.path.abspath(str(metadata.locate_file(""))),
        folder=metadata.path if isinstance(metadata, MetadataFolder) else None,
        listed=_listed(metadata),
        editable=is_editable(metadata),
    )


def _listed(metadata: Metadata) -> tuple[str, ...] | None:
    text = metadata.read_text("RECORD")
    if text is None:
        return None
    return tuple(row[0].replace("\\", "/") for row in csv.reader(text.splitlines()) if row)


def _unlocked(name: str) -> bool:
    """Caches, which Python writes, and the list itself, which is not believed."""
    parts = name.split("/")
    return name.endswith(".dist-info/RECORD") or any(part in _UNLOCKED for part in parts)


def _in_own_package(name: str, known: Collection[str]) -> bool:
    """Below a package that is the distribution's alone, not a namespace that several share."""
    parts = name.split("/")
    return any("/".join((*parts[:depth], "__init__.py")) in known for depth in range(1, len(parts)))


def _owned_by_others(own: Installed, search_path: Sequence[str] | None) -> set[str]:
    """Files of other distributions, with which it may share a folder."""
    owned = set()
    for metadata in scan(search_path):
        if isinstance(metadata, MetadataFolder) and metadata.path == own.folder:
            continue
        root = str(metadata.locate_file(""))
        owned |= {os.path.realpath(os.path.join(root, name)) for name in _listed(metadata) or ()}
    return owned


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
