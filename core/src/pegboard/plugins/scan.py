"""A quick walk over the metadata of what is installed.

Start-up has a budget, and importing a metadata library would take a fifth of it to read what are
text files in folders. So folders on the path are read here, and the library is asked only where it
knows more: archives on the path, and import systems with a metadata finder of their own.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from typing import NamedTuple, Protocol

__all__ = ["Metadata", "MetadataFolder", "entry_points", "headers", "scan"]


_HEAD_END = re.compile(r"\r?\n[\r\n]|\A(?=[\r\n])")
"""What ends the headers."""


class Metadata(Protocol):
    """The metadata of one distribution, wherever it is kept."""

    def read_text(self, filename: str) -> str | None:
        """Content of a metadata file, or None if there is no such file."""
        ...

    def locate_file(self, path: str) -> object:
        """Where an installed file is; for the empty path the folder of the installation."""
        ...


class MetadataFolder(NamedTuple):
    """A ``.dist-info`` or ``.egg-info`` folder."""

    path: str

    def read_text(self, filename: str) -> str | None:
        """Content of a metadata file, or None if there is no such file."""
        try:
            with open(f"{self.path}{os.sep}{filename}", "rb", buffering=0) as file:
                # A stranger's broken text is no reason to fail: what matters of it is ASCII.
                return file.readall().decode("utf-8", "replace")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError):
            return None

    def locate_file(self, path: str) -> str:
        """Where an installed file is."""
        return os.path.join(os.path.dirname(self.path), path)


def scan(search_path: Sequence[str] | None = None) -> Iterator[Metadata]:
    """Metadata of every distribution on the path (default ``sys.path``).

    In path order, not de-duplicated.
    """
    if search_path is None and any(map(_finds_metadata, sys.meta_path)):
        yield from _by_library(None)
        return
    for entry in sys.path if search_path is None else search_path:
        try:
            names = sorted(os.listdir(entry or os.curdir))
        except NotADirectoryError:
            yield from _by_library([entry])
            continue
        except OSError:
            continue  # the path may name folders that do not exist
        for name in names:
            if name.endswith((".dist-info", ".egg-info")) or name == "EGG-INFO":
                yield MetadataFolder(os.path.join(entry, name))


def _finds_metadata(finder: object) -> bool:
    """Whether this import finder offers metadata beyond that of folders and archives on the
    path."""
    if finder is PathFinder or type(finder).__module__.partition(".")[0] == "importlib_metadata":
        return False
    return hasattr(finder, "find_distributions")


def _by_library(search_path: list[str] | None) -> Iterator[Metadata]:
    from importlib_metadata import distributions

    yield from distributions() if search_path is None else distributions(path=search_path)


def headers(metadata: Metadata) -> Mapping[str, list[str]]:
    """Fields of the core metadata by lower-case name, each with all its values."""
    text = metadata.read_text("METADATA") or metadata.read_text("PKG-INFO") or ""
    fields: dict[str, list[str]] = {}
    for line in _HEAD_END.split(text, 1)[0].splitlines():  # the long description follows
        name, colon, value = line.partition(":")
        if colon and not line[0].isspace():
            fields.setdefault(name.lower(), []).append(value.strip())
    return fields


def entry_points(text: str) -> Iterator[tuple[str, str, str]]:
    """(group, name, value) of each line of an ``entry_points.txt``.

    Raises `ValueError` for a line that is no part of that format.
    """
    group = None
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if not line or line[0] in "#;":
            continue
        if line[0] == "[" and line[-1] == "]":
            group = line[1:-1].strip()
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if group is None or not (name and equals and value):
            raise ValueError(f"line {number} of entry_points.txt is {line!r}")
        yield group, name, value
