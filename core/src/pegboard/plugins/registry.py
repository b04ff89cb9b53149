"""Registries: what is on the board, by surface, and who put it there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

import attrs

from pegboard.api.descriptor import Descriptor
from pegboard.errors import DuplicateError
from pegboard.plugins.record import PluginRecord

__all__ = ["Clash", "ClashError", "Entry", "Provenance", "Registry", "Shadow"]

T = TypeVar("T", bound=Descriptor)


class Provenance(NamedTuple):
    """Who registered something."""

    distribution: str
    version: str
    entry_point: str
    """Entry-point name; ``"core"`` for what the core itself brings."""
    group: str
    """Full entry-point group; empty for the core."""

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


@attrs.frozen
class Entry(Generic[T]):
    """A descriptor and who registered it."""

    descriptor: T
    provenance: Provenance
    overrides: frozenset[str] = frozenset()
    """Keys that it takes from whoever else has them."""
    name_and_claims: tuple[str, tuple[str, ...]] = attrs.field(init=False, eq=False, repr=False)
    """Asked once: a plugin's code has no say when others register."""

    @name_and_claims.default
    def _ask(self) -> tuple[str, tuple[str, ...]]:
        return self.descriptor.name, tuple(self.descriptor.claims())

    @property
    def name(self) -> str:
        return self.name_and_claims[0]

    @property
    def keys(self) -> tuple[str, ...]:
        """Name and claims, each once, the name first."""
        return tuple(dict.fromkeys((self.name, *self.name_and_claims[1])))


class Clash(NamedTuple):
    """A name or claim that two descriptors of one surface share."""

    surface: str
    key: str
    first: Provenance
    second: Provenance

    def __str__(self) -> str:
        if self.first == self.second:
            return f"{self.surface} {self.key!r} is registered twice by {self.first}"
        return (
            f"{self.surface} {self.key!r} is registered by both {self.first} "
            f"({self.first.entry_point}) "
            f"and {self.second} ({self.second.entry_point})"
        )


class Shadow(NamedTuple):
    """A descriptor of which another plugin overrides something."""

    surface: str
    name: str
    keys: tuple[str, ...]
    """Those of its keys that lead to the other plugin."""
    whole: bool
    """It is off the board: its name, or all of its claims, are among them."""
    owner: Provenance
    by: Provenance

    def hides(self, record: PluginRecord) -> bool:
        """Whether the descriptor is this plugin's."""
        owner = self.owner
        return (owner.distribution, owner.entry_point, owner.group) == (
            record.distribution,
            record.id,
            record.group,
        )


class ClashError(DuplicateError):
    """Keys are taken; the message tells the first clash in full and counts the others."""

    def __init__(self, clashes: Sequence[Clash]) -> None:
        more = f" (and {len(clashes) - 1} more clashes)" if len(clashes) > 1 else ""
        super().__init__(f"{clashes[0]}{more}")
        self.clashes = tuple(clashes)


class Registry(Generic[T]):
    """The descriptors of one surface. Immutable: `extended` returns a new one.

    Names and claims share one namespace, in which every key leads to one descriptor. Iteration is
    in order of registration: the core's own first, then plugins in the order of their loading. A
    key that several have is a clash, unless just one of them overrides it. A descriptor whose name
    or whose every claim is overridden is off the board.
    """

    def __init__(self, surface: str, entries: Iterable[Entry[T]] = ()) -> None:
        """Raises `ClashError` if two entries share a key."""
        self.surface = surface
        self._entries = tuple(entries)
        by_key, clashes = _index(surface, self._entries)
        if clashes:
            raise ClashError(clashes)
        self._shadows = _shadows(surface, self._entries, by_key)
        gone = {(s.name, s.owner) for s in self._shadows if s.whole}
        self._live = tuple(e for e in self._entries if (e.name, e.provenance) not in gone)
        self._by_key: Mapping[str, Entry[T]] = MappingProxyType(
            {k: e for k, e in by_key.items() if (e.name, e.provenance) not in gone}
        )

    def _simply_extended(self, entries: Sequence[Entry[T]]) -> Registry[T] | None:
        """The registry with these entries too, where no two want one key, which is the rule; the
        others are looked at closely."""
        keys = [(key, entry) for entry in entries for key in entry.keys]
        more = dict(keys)
        if self._shadows or len(more) < len(keys) or not self._by_key.keys().isdisjoint(more):
            return None
        made = Registry[T].__new__(Registry)
        made.surface = self.surface
        made._entries, made._live = (*self._entries, *entries), (*self._live, *entries)
        made._shadows = ()
        made._by_key = MappingProxyType({**self._by_key, **more})
        return made

    def extended(self, entries: Sequence[Entry[T]]) -> Registry[T]:
        """A registry with these entries too.

        Raises `ClashError` and changes nothing if a key is taken.
        """
        quick = self._simply_extended(entries)
        if quick is not None:
            return quick
        return Registry(self.surface, (*self._entries, *entries))

    def without(self, sources: Collection[Provenance]) -> Registry[T]:
        """A registry without what these registered; itself if that is nothing."""
        kept = [entry for entry in self._entries if entry.provenance not in sources]
        return self if len(kept) == len(self._entries) else Registry(self.surface, kept)

    def get(self, key: str) -> T | None:
        """The descriptor with this name or claim, or None."""
        entry = self._by_key.get(key)
        return None if entry is None else entry.descriptor

    def provenance(self, key: str) -> Provenance:
        """Who registered this name or claim. Raises `KeyError` if nobody did."""
        return self._by_key[key].provenance

    def names(self) -> tuple[str, ...]:
        """Names, without claims, in order."""
        return tuple(entry.name for entry in self._live)

    def keys(self) -> tuple[str, ...]:
        """Names and claims, in order."""
        return tuple(self._by_key)

    def entries(self) -> tuple[Entry[T], ...]:
        """Descriptors with their provenance, in order."""
        return self._live

    def shadows(self) -> tuple[Shadow, ...]:
        """Descriptors of which another plugin overrides something."""
        return self._shadows

    def __iter__(self) -> Iterator[T]:
        return (entry.descriptor for entry in self._live)

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def __repr__(self) -> str:
        return f"Registry({self.surface!r}, {list(self.names())})"


def _index(
    surface: str, entries: Iterable[Entry[T]]
) -> tuple[dict[str, Entry[T]], tuple[Clash, ...]]:
    """Entries by key, of each the first or the one that overrides the others; and every key that
    more than one may have."""
    users: dict[str, list[Entry[T]]] = {}
    for entry in entries:
        for key in entry.keys:
            users.setdefault(key, []).append(entry)
    by_key: dict[str, Entry[T]] = {}
    clashes: list[Clash] = []
    for key, claimants in users.items():
        takers = [entry for entry in claimants if key in entry.overrides]
        first, *others = takers or claimants
        by_key[key] = first
        clashes += (Clash(surface, key, first.provenance, o.provenance) for o in others)
    return by_key, tuple(clashes)


def _shadows(
    surface: str, entries: Iterable[Entry[T]], by_key: Mapping[str, Entry[T]]
) -> tuple[Shadow, ...]:
    found = []
    for entry in entries:
        name, *claims = entry.keys
        lost = [key for key in (name, *claims) if by_key[key] is not entry]
        if lost:
            whole = name in lost or (bool(claims) and set(claims) <= set(lost))
            by = by_key[lost[0]].provenance
            found.append(Shadow(surface, name, tuple(lost), whole, entry.provenance, by))
    return tuple(found)
