"""Which plugins are installed: a walk over all distributions, importing none of them.

We read the entry points of each distribution ourselves rather than ask for a group, so that every
entry keeps its distribution, a distribution with a broken file spoils only itself, and one found
twice on the path is noticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pegboard.plugins.record import GROUPS, Candidate, normal_form
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
    """Find every entry point in our groups on `search_path` (default: ``sys.path``)."""
    found: dict[str, tuple[Candidate, ...]] = {}
    notices: list[str] = []
    strays: list[str] = []
    for metadata in scan(search_path):
        try:
            text = metadata.read_text("entry_points.txt")
            if text is None or not looks_like_ours(text):
                continue  # spares reading the rest of everything else that is installed
            strays += stray_notices(distribution_name(metadata) or _location(metadata), text)
            if "pegboard." not in text:
                continue
            name, candidates = _read(metadata, text)
        except Exception as error:
            where = distribution_name(metadata) or _location(metadata)
            notices.append(f"cannot read the metadata of {where}: {type(error).__name__}: {error}")
            continue
        if name not in found:
            found[name] = candidates
        elif found[name] != candidates:
            notices.append(_found_twice(name, found[name], candidates, metadata))
    ordered = sorted(
        (c for group in found.values() for c in group),
        key=lambda c: (c.group, c.id, c.distribution),
    )
    return Discovery(tuple(ordered), tuple(notices), tuple(dict.fromkeys(strays)))


def distribution_name(metadata: Metadata) -> str | None:
    """Normal form of the name, or None where the metadata is missing or broken."""
    try:
        names = headers(metadata).get("name")
    except (OSError, UnicodeDecodeError):
        return None
    return normal_form(names[0]) if names else None


def _read(metadata: Metadata, text: str) -> tuple[str, tuple[Candidate, ...]]:
    fields = headers(metadata)
    if "name" not in fields or "version" not in fields:
        raise ValueError("its METADATA has no Name or no Version")
    name, version = normal_form(fields["name"][0]), fields["version"][0]
    requires = tuple(fields.get("requires-dist", ()))
    candidates = (
        Candidate(entry, group, value, name, version, requires)
        for group, entry, value in entry_points(text)
        if group in GROUPS
    )
    return name, tuple(sorted(candidates, key=lambda c: (c.group, c.id, c.value)))


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
