"""In which order plugins are loaded, where they ask for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["load_order"]


def load_order(
    ids: Sequence[str], wishes: Mapping[str, tuple[Sequence[str], Sequence[str]]]
) -> tuple[list[str], dict[str, str]]:
    """All of `ids` in an order that keeps every wish, near to the one they come in.

    Args:
        ids: Plugin ids.
        wishes: By id, the ids that it comes before and those that it comes after; ids that are
            not among `ids` do not count.

    Returns the order, and for each id that lies on a cycle, whose own wishes are ignored, what
    the cycle is.
    """
    later = _followers(ids, wishes)
    if not any(later.values()):
        return list(ids), {}
    ways = {name: _way(name, name, later) for name in ids}
    cycles = {name: " before ".join(way) for name, way in ways.items() if way}
    if cycles:
        later = _followers(ids, {name: w for name, w in wishes.items() if name not in cycles})
    return _sorted(ids, later), cycles


def _followers(
    ids: Sequence[str], wishes: Mapping[str, tuple[Sequence[str], Sequence[str]]]
) -> dict[str, list[str]]:
    """By id, those that must come later."""
    later: dict[str, list[str]] = {name: [] for name in ids}
    for name, (before, after) in wishes.items():
        later[name] += (other for other in before if other in later)
        for other in after:
            if other in later:
                later[other].append(name)
    return later


def _way(start: str, end: str, later: Mapping[str, Sequence[str]]) -> list[str]:
    """The shortest way along `later`, with both ends, at least one step long; empty if there is
    none."""
    ways, seen = [[start]], set()
    for way in ways:  # grows while it is read
        for following in later[way[-1]]:
            if following == end:
                return [*way, end]
            if following not in seen:
                seen.add(following)
                ways.append([*way, following])
    return []


def _sorted(ids: Sequence[str], later: Mapping[str, Sequence[str]]) -> list[str]:
    """Of those for which nothing is waited, always the first."""
    waiting = {name: sum(name in others for others in later.values()) for name in ids}
    done: list[str] = []
    while waiting:
        name = next(n for n, count in waiting.items() if not count)
        done.append(name)
        del waiting[name]
        for other in set(later[name]):
            waiting[other] -= 1
    return done
