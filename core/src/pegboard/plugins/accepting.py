"""What the board becomes with what one plugin offers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pegboard.api.descriptor import Descriptor
from pegboard.plugins.clashes import Remedies
from pegboard.plugins.record import Registration
from pegboard.plugins.registry import Clash, ClashError, Entry, Provenance, Registry

__all__ = ["Accepted", "accept", "accept_first"]


class Accepted(NamedTuple):
    """What a plugin offers, ready to be put on the board."""

    registries: Mapping[str, Registry[Any]]
    """Those that change, by surface."""
    registered: tuple[Registration, ...]
    clashes: tuple[Clash, ...] = ()
    """With those that go."""
    going: frozenset[Provenance] = frozenset()
    """Plugins that make room, and are rolled back."""


def accept(
    registries: Mapping[str, Registry[Any]],
    pairs: Sequence[tuple[str, Descriptor]],
    source: Provenance,
    override: Mapping[str, frozenset[str]],
) -> Accepted:
    """What `registries` become with all (surface, descriptor) pairs. Changes nothing; raises
    `ClashError` if a key is taken."""
    by_surface: dict[str, list[Entry[Any]]] = defaultdict(list)
    done = []
    for surface, descriptor in pairs:
        entry = Entry(descriptor, source, override.get(surface, frozenset()))
        by_surface[surface].append(entry)
        done.append(Registration(surface, *entry.name_and_claims))
    extended, clashes = {}, list[Clash]()
    for surface, entries in by_surface.items():
        try:
            extended[surface] = registries[surface].extended(entries)
        except ClashError as error:
            clashes += error.clashes
    if clashes:
        raise ClashError(clashes)
    return Accepted(extended, tuple(done))


def accept_first(
    registries: Mapping[str, Registry[Any]],
    pairs: Sequence[tuple[str, Descriptor]],
    source: Provenance,
    override: Mapping[str, frozenset[str]],
    remedies: Remedies,
) -> Accepted:
    """As `accept`, where those that must make room for the plugin do so."""
    try:
        return accept(registries, pairs, source, override)
    except ClashError as error:
        going = remedies.giving_way(error.clashes, source)
        if not going:
            raise
        rest = {surface: registry.without(going) for surface, registry in registries.items()}
        made = accept(rest, pairs, source, override)
        changed = {**rest, **made.registries}
        return Accepted(changed, made.registered, error.clashes, frozenset(going))
