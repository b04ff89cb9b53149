"""Registries: what is on the board, by surface, and who put it there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

import attrs

from pegboard.api.descriptor import Descriptor
from pegboard.errors import DuplicateError

__all__ = ["Clash", "ClashError", "Entry", "Provenance", "Registry", "keys_of"]

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


class ClashError(DuplicateError):
    """Keys are taken; the message tells the first clash in full and counts the others."""

    def __init__(self, clashes: Sequence[Clash]) -> None:
        more = f" (and {len(clashes) - 1} more clashes)" if len(clashes) > 1 else ""
        super().__init__(f"{clashes[0]}{more}")
        self.clashes = tuple(clashes)


def keys_of(descriptor: Descriptor) -> tuple[str, ...]:
    """Name and claims, each once, the name first."""
    return tuple(dict.fromkeys((descriptor.name, *descriptor.claims())))


class Registry(Generic[T]):
    """The descriptors of one surface. Immutable: `extended` returns a new one.

    Names and claims share one namespace, in which every key leads to one descriptor. Iteration is
    in order of registration: the core's own first, then plugins by group, name and distribution.
    """

    def __init__(self, surface: str, entries: Iterable[Entry[T]] = ()) -> None:
        """Raises `ClashError` if two entries share a key."""
        self.surface = surface
        self._entries = tuple(entries)
        by_key, clashes = _index(surface, self._entries)
        if clashes:
            raise ClashError(clashes)
        self._by_key: Mapping[str, Entry[T]] = MappingProxyType(by_key)

    def clashes(self, entries: Sequence[Entry[T]]) -> tuple[Clash, ...]:
        """What stands against adding these entries."""
        return _index(self.surface, (*self._entries, *entries))[1]

    def extended(self, entries: Sequence[Entry[T]]) -> Registry[T]:
        """A registry with these entries too.

        Raises `ClashError` and changes nothing if a key is taken.
        """
        return Registry(self.surface, (*self._entries, *entries))

    def get(self, key: str) -> T | None:
        """The descriptor with this name or claim, or None."""
        entry = self._by_key.get(key)
        return None if entry is None else entry.descriptor

    def provenance(self, key: str) -> Provenance:
        """Who registered this name or claim. Raises `KeyError` if nobody did."""
        return self._by_key[key].provenance

    def names(self) -> tuple[str, ...]:
        """Names, without claims, in order."""
        return tuple(entry.descriptor.name for entry in self._entries)

    def keys(self) -> tuple[str, ...]:
        """Names and claims, in order."""
        return tuple(self._by_key)

    def entries(self) -> tuple[Entry[T], ...]:
        """Descriptors with their provenance, in order."""
        return self._entries

    def __iter__(self) -> Iterator[T]:
        return (entry.descriptor for entry in self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def __repr__(self) -> str:
        return f"Registry({self.surface!r}, {list(self.names())})"


def _index(
    surface: str, entries: Iterable[Entry[T]]
) -> tuple[dict[str, Entry[T]], tuple[Clash, ...]]:
    """Entries by key, the first of each; and every key that comes again."""
    by_key: dict[str, Entry[T]] = {}
    clashes = []
    for entry in entries:
        for key in keys_of(entry.descriptor):
            first = by_key.setdefault(key, entry)
            if first is not entry:
                clashes.append(Clash(surface, key, first.provenance, entry.provenance))
    return by_key, tuple(clashes)
