"""Which plugins are installed: a walk over all distributions, importing none of them.

We read the entry points of each distribution ourselves rather than ask for a group, so that every entry keeps its
distribution, a distribution with a broken file spoils only itself, and one found twice on the path is noticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import attrs
from importlib_metadata import Distribution, distributions

from pegboard.plugins.record import GROUPS, Candidate, normal_form

__all__ = ["Discovery", "discover", "distribution_name", "installed_distributions"]


@attrs.frozen
class Discovery:
    """All candidates, sorted by group, name and distribution; and what was odd on the way."""

    candidates: tuple[Candidate, ...]
    notices: tuple[str, ...] = ()


def discover(search_path: Sequence[str] | None = None) -> Discovery:
    """Find every entry point in our groups on `search_path` (default: ``sys.path``)."""
    found: dict[str, tuple[Candidate, ...]] = {}
    notices: list[str] = []
    for distribution in installed_distributions(search_path):
        if not _mentions_our_groups(distribution):
            continue
        try:
            name, candidates = _read(distribution)
        except Exception as error:
            where = distribution_name(distribution) or _location(distribution)
            notices.append(f"cannot read the metadata of {where}: {type(error).__name__}: {error}")
            continue
        if name not in found:
            found[name] = candidates
        elif found[name] != candidates:
            notices.append(_found_twice(name, found[name], candidates, distribution))
    ordered = sorted(
        (c for group in found.values() for c in group),
        key=lambda c: (c.group, c.id, c.distribution),
    )
    return Discovery(tuple(ordered), tuple(notices))


def installed_distributions(search_path: Sequence[str] | None = None) -> Iterator[Distribution]:
    """Every distribution on the path, in path order, not de-duplicated."""
    found = distributions() if search_path is None else distributions(path=list(search_path))
    return iter(cast("Iterable[Distribution]", found))


def distribution_name(distribution: Distribution) -> str | None:
    """Normal form of the name, or None where the metadata is missing or broken."""
    try:
        name = distribution.metadata["Name"]
    except Exception:
        return None
    return normal_form(name) if name else None


def _mentions_our_groups(distribution: Distribution) -> bool:
    """Cheap test that spares parsing the metadata of everything else that is installed."""
    try:
        text = distribution.read_text("entry_points.txt")
    except (OSError, UnicodeDecodeError):
        return False
    return text is not None and "pegboard." in text


def _read(distribution: Distribution) -> tuple[str, tuple[Candidate, ...]]:
    metadata = distribution.metadata
    name, version = metadata["Name"], metadata["Version"]
    if not name or not version:
        raise ValueError("its METADATA has no Name or no Version")
    requires = tuple(distribution.requires or ())
    candidates = (
        Candidate(e.name, e.group, e.value.strip(), normal_form(name), version, requires)
        for e in distribution.entry_points
        if e.group in GROUPS
    )
    return normal_form(name), tuple(sorted(candidates, key=lambda c: (c.group, c.id, c.value)))


def _found_twice(
    name: str, used: Iterable[Candidate], left: Iterable[Candidate], distribution: Distribution
) -> str:
    def listing(candidates: Iterable[Candidate]) -> str:
        return ", ".join(f"{c.qualified} {c.version}" for c in candidates) or "no plugins"

    return (
        f"{name} is on the path twice: the first ({listing(used)}) is used, the one in {_location(distribution)} "
        f"({listing(left)}) is not; remove the stale one"
    )


def _location(distribution: Distribution) -> str:
    return str(distribution.locate_file(""))
