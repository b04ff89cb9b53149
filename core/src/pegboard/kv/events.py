"""What happened to the content of a cache, written down for those who follow it from outside.

The pool tells its log of keys; the manager tells which request the keys that were just filed belong
to. `pegboard.api.events` says what followers may rely on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from pegboard.api.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    ExtraKey,
    KVEvent,
)
from pegboard.api.kv import KVGroup, RecurrentSpec, SlidingWindowSpec

if TYPE_CHECKING:
    from pegboard.kv.blocks import BlockKey
    from pegboard.kv.values import KVRequest

__all__ = ["CacheLog", "EventLog", "NullLog"]


class CacheLog(Protocol):
    """Whom pool and manager tell."""

    def filed(self, key: BlockKey) -> None:
        """Something is filed under `key` for the first time."""
        ...

    def removed(self, key: BlockKey) -> None:
        """Nothing is filed under `key` any more."""
        ...

    def cleared(self) -> None:
        """Nothing is filed any more."""
        ...

    def committed(self, request: KVRequest, start: int, stop: int) -> None:
        """What was filed since the last call names hash units ``start:stop`` of `request`."""
        ...

    def take(self) -> list[KVEvent]:
        """Events since the last call, in order."""
        ...


class NullLog:
    """Writes nothing down."""

    def filed(self, key: BlockKey) -> None:
        return

    def removed(self, key: BlockKey) -> None:
        return

    def cleared(self) -> None:
        return

    def committed(self, request: KVRequest, start: int, stop: int) -> None:
        return

    def take(self) -> list[KVEvent]:
        return []


class _Group(msgspec.Struct, frozen=True):
    """What events tell of a group."""

    kind: str
    window: int | None
    span: int
    """Hash units that a key's content is told with: of a state, all since the last border."""

    @classmethod
    def of(cls, group: KVGroup, unit: int) -> _Group:
        spec = group.spec
        window = spec.window if isinstance(spec, SlidingWindowSpec) else None
        span = group.block_size // unit if isinstance(spec, RecurrentSpec) else 1
        return cls(spec.kind, window, span)


class EventLog:
    """Makes events. `unit` is the number of tokens per hash."""

    def __init__(self, groups: Sequence[KVGroup], unit: int) -> None:
        self._groups = [_Group.of(group, unit) for group in groups]
        self._unit = unit
        self._filed: list[BlockKey] = []
        """Keys whose request is not told yet."""
        self._events: list[KVEvent] = []

    def filed(self, key: BlockKey) -> None:
        self._filed.append(key)

    def removed(self, key: BlockKey) -> None:
        assert not self._filed, "a key was removed before it was told whose the filed ones are"
        group, value = key
        last = self._events[-1] if self._events else None
        if isinstance(last, BlockRemoved) and last.group == group:
            last.block_hashes.append(value)
        else:
            self._events.append(BlockRemoved([value], group))

    def cleared(self) -> None:
        assert not self._filed, "the cache was cleared before it was told whose the filed keys are"
        self._events.append(AllBlocksCleared())

    def committed(self, request: KVRequest, start: int, stop: int) -> None:
        if not self._filed:
            return
        filed, self._filed = self._filed, []
        numbers = {value: n for n, value in enumerate(request.hashes[start:stop], start)}
        places = [(group, numbers[value]) for group, value in filed]
        for group, first, end in self._runs(places):
            self._events.append(self._stored(request, group, first, end))

    def take(self) -> list[KVEvent]:
        events, self._events = self._events, []
        return events

    def _runs(self, places: list[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
        """Join keys that follow one another: (group, first unit, unit after the last)."""
        run: tuple[int, int, int] | None = None
        for group, number in places:
            first = number + 1 - self._groups[group].span
            if run is not None and run[0] == group and run[2] == first:
                run = (group, run[1], number + 1)
                continue
            if run is not None:
                yield run
            run = (group, first, number + 1)
        if run is not None:
            yield run

    def _stored(self, request: KVRequest, group: int, first: int, stop: int) -> BlockStored:
        about, unit = self._groups[group], self._unit
        size = about.span * unit
        return BlockStored(
            block_hashes=request.hashes[first + about.span - 1 : stop : about.span],
            parent_hash=request.hashes[first - 1] if first else None,
            token_ids=list(request.ids(first * unit, stop * unit)),
            block_size=size,
            group=group,
            kind=about.kind,
            window=about.window,
            adapter=request.adapter,
            extra_keys=[
                _extra_keys(request, start, start + size)
                for start in range(first * unit, stop * unit, size)
            ],
        )


def _extra_keys(request: KVRequest, start: int, stop: int) -> tuple[ExtraKey, ...] | None:
    """What the hash of tokens ``start:stop`` covers beside them."""
    keys: list[ExtraKey] = [] if request.adapter is None else [request.adapter]
    keys += [
        (digest, offset - start)
        for offset, length, digest in request.media
        if offset < stop and offset + length > start
    ]
    if start == 0 and request.salt is not None:
        keys.append(request.salt)
    return tuple(keys) or None
