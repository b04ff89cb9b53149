"""Which plugins are installed: a walk over all distributions, importing none of them.

We read the entry points of each distribution ourselves rather than ask for a group, so that every
entry keeps its distribution, a distribution with a broken file spoils only itself, and one found
twice on the path is noticed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from pegboard.plugins.record import ADOPTERS, GROUPS, Candidate, normal_form
from pegboard.plugins.scan import Metadata, MetadataFolder, entry_points, headers, scan
from pegboard.plugins.strays import looks_like_ours, stray_notices

__all__ = ["Discovery", "discover", "distribution_name"]


class Discovery(NamedTuple):
    """All candidates, sorted by group, name and distribution; and what was odd on the way."""

    candidates: tuple[Candidate, ...]
    notices: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    """Sentences on entry-point groups whose names are almost ours."""


def discover(search_path: Sequence[str] | None = None) -> Discovery:
    """Find every entry point in our groups, and in those that a plugin adopts, on `search_path`
    (default: ``sys.path``)."""
    walk = _Walk()
    others: list[tuple[Metadata, str]] = []
    for metadata in scan(search_path):
        with walk.noting(metadata):
            text = metadata.read_text("entry_points.txt")
            if text and looks_like_ours(text):
                walk.look_for_strays(metadata, text)
            if text and "pegboard." in text:
                walk.read(metadata, text)
            elif text:  # spares reading the rest of everything else that is installed
                others.append((metadata, text))
    for metadata, text in others if walk.adopters else ():
        if any(group in text for group in walk.adopters):
            with walk.noting(metadata):
                walk.read(metadata, text)
    return walk.discovery()


class _Walk:
    """What was found so far."""

    def __init__(self) -> None:
        self._found: dict[str, _Distribution] = {}
        self._notices: list[str] = []
        self._strays: dict[str, None] = {}
        self.adopters: dict[str, Candidate] = {}
        """By the group of another program, the plugin that runs what is in it."""

    @contextmanager
    def noting(self, metadata: Metadata) -> Iterator[None]:
        """Whatever is wrong with this metadata is told, and spoils nothing else."""
        try:
            yield
        except Exception as error:
            where = distribution_name(metadata) or _location(metadata)
            self._notices.append(
                f"cannot read the metadata of {where}: {type(error).__name__}: {error}"
            )

    def look_for_strays(self, metadata: Metadata, text: str) -> None:
        """Note groups whose names are almost ours."""
        for notice in stray_notices(text):  # to read the name for nothing takes a while
            where = distribution_name(metadata) or _location(metadata)
            self._strays[f"{where}: {notice}"] = None

    def read(self, metadata: Metadata, text: str) -> None:
        """Take in one distribution, whose entry points are `text`."""
        one = _read(metadata, text)
        first = self._found.setdefault(one.name, one)
        if first is one:
            self._adopt(one)
            return
        used, left = (tuple(each.candidates(GROUPS)) for each in (first, one))
        if used != left:
            self._notices.append(_found_twice(one.name, used, left, metadata))

    def discovery(self) -> Discovery:
        """Everything, in order."""
        own = (c for one in self._found.values() for c in one.candidates(GROUPS))
        ordered = sorted((*own, *self._adopted()), key=lambda c: (c.group, c.id, c.distribution))
        return Discovery(tuple(ordered), tuple(self._notices), tuple(self._strays))

    def _adopt(self, one: _Distribution) -> None:
        modules = {c.value: c for c in one.candidates(GROUPS)}
        for group, name, value in one.entries:
            if group != ADOPTERS:
                continue
            adopter = modules.get(value)
            if adopter is None:
                self._notices.append(
                    f"{one.name} adopts the group {name} with {value!r}, which is no plugin of it"
                )
            elif self.adopters.setdefault(name, adopter) is not adopter:
                self._notices.append(
                    f"the group {name} is adopted by both {self.adopters[name]}, which is used, "
                    f"and {adopter}"
                )

    def _adopted(self) -> Iterator[Candidate]:
        for one in self._found.values() if self.adopters else ():
            for candidate in one.candidates(self.adopters):
                program = candidate.group.partition(".")[0]  # which the adopter stands in for
                requires = (r for r in candidate.requires if _required(r) != program)
                adopter = self.adopters[candidate.group]
                yield candidate._replace(requires=tuple(requires), adopter=adopter)


def distribution_name(metadata: Metadata) -> str | None:
    """Normal form of the name, or None where the metadata is missing or broken."""
    try:
        names = headers(metadata).get("name")
    except (OSError, UnicodeDecodeError):
        return None
    return normal_form(names[0]) if names else None


class _Distribution(NamedTuple):
    """What the metadata of a distribution says of plugins."""

    name: str
    version: str
    requires: tuple[str, ...]
    entries: tuple[tuple[str, str, str], ...]
    """(group, name, value), sorted."""

    def candidates(self, groups: Collection[str]) -> Iterator[Candidate]:
        """Those in these groups."""
        for group, entry, value in self.entries:
            if group in groups:
                yield Candidate(entry, group, value, self.name, self.version, self.requires)


def _read(metadata: Metadata, text: str) -> _Distribution:
    fields = headers(metadata)
    if "name" not in fields or "version" not in fields:
        raise ValueError("its METADATA has no Name or no Version")
    name, version = normal_form(fields["name"][0]), fields["version"][0]
    requires = tuple(fields.get("requires-dist", ()))
    return _Distribution(name, version, requires, tuple(sorted(entry_points(text))))


def _required(requirement: str) -> str:
    """Name of the distribution in a ``Requires-Dist`` line, in normal form."""
    found = re.match(r"\s*([A-Za-z0-9._-]+)", requirement)
    return normal_form(found[1]) if found else ""


def _found_twice(
    name: str, used: Iterable[Candidate], left: Iterable[Candidate], metadata: Metadata
) -> str:
    def listing(candidates: Iterable[Candidate]) -> str:
        return ", ".join(f"{c.qualified} {c.version}" for c in candidates) or "no plugins"

    return (
        f"{name} is on the path twice: the first ({listing(used)}) is used, the one in "
        f"{_location(metadata)} ({listing(left)}) is not; remove the stale one"
    )


def _location(metadata: Metadata) -> str:
    if isinstance(metadata, MetadataFolder):
        return metadata.path
    return str(metadata.locate_file(""))
