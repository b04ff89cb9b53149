"""Which block makes room for a new one. Sizes are in bytes.

`ARC` follows N. Megiddo and D. Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache" (FAST
2003), with bytes in the place of pages: entries seen once and entries seen again have a list each,
ghosts of evicted entries tell which of the two lists was cut too short, and `target` moves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container
from typing import Protocol

__all__ = ["ARC", "LRU", "Eviction", "make_eviction"]


class Eviction(Protocol):
    """A policy. The caller counts bytes and asks for victims until there is room::

    expect(key, size); while full: evict(key, pinned); insert(key, size)
    """

    def expect(self, key: str, size: int) -> None:
        """Room is about to be made for an entry."""

    def evict(self, key: str, pinned: Container[str]) -> str | None:
        """Take out an entry that is not pinned, for `key`; None if there is none."""

    def insert(self, key: str, size: int) -> None:
        """A new entry, used just now."""

    def touch(self, key: str) -> None:
        """An entry was used; unknown ones are ignored."""

    def forget(self, key: str) -> None:
        """An entry is gone for another reason; unknown ones are ignored."""


class LRU:
    """The least recently used entry goes first."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, None] = OrderedDict()

    def expect(self, key: str, size: int) -> None:
        """Nothing to prepare."""

    def evict(self, key: str, pinned: Container[str]) -> str | None:
        victim = next((entry for entry in self._entries if entry not in pinned), None)
        if victim is not None:
            del self._entries[victim]
        return victim

    def insert(self, key: str, size: int) -> None:
        self._entries[key] = None
        self._entries.move_to_end(key)

    def touch(self, key: str) -> None:
        if key in self._entries:
            self._entries.move_to_end(key)

    def forget(self, key: str) -> None:
        self._entries.pop(key, None)


class _Queue:
    """Keys with sizes, least recent first."""

    def __init__(self) -> None:
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self.bytes = 0

    def __contains__(self, key: str) -> bool:
        return key in self._sizes

    def push(self, key: str, size: int) -> None:
        """Add at the recent end."""
        assert key not in self._sizes, f"{key} is there already"
        self._sizes[key] = size
        self.bytes += size

    def pop(self, key: str) -> int:
        """Remove; the size."""
        size = self._sizes.pop(key)
        self.bytes -= size
        return size

    def oldest(self, pinned: Container[str] = ()) -> str | None:
        """The least recent key that is not pinned."""
        return next((key for key in self._sizes if key not in pinned), None)


class ARC:
    """Balances recency and frequency by itself."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._once, self._again = _Queue(), _Queue()  # T1, T2 of the paper
        self._once_ghosts, self._again_ghosts = _Queue(), _Queue()  # B1, B2
        self.target = 0.0
        """Bytes that entries seen once should take (p of the paper)."""

    def expect(self, key: str, size: int) -> None:
        once, again = self._once_ghosts.bytes, self._again_ghosts.bytes
        if key in self._once_ghosts:
            grown = self.target + size * max(1.0, again / once)
            self.target = min(grown, float(self._capacity))
        elif key in self._again_ghosts:
            self.target = max(self.target - size * max(1.0, once / again), 0.0)

    def evict(self, key: str, pinned: Container[str]) -> str | None:
        once, again = self._once.oldest(pinned), self._again.oldest(pinned)
        if once is None and again is None:
            return None
        bytes_once = self._once.bytes
        long = bytes_once > self.target or (bytes_once == self.target and key in self._again_ghosts)
        if once is not None and (again is None or (long and bytes_once > 0)):
            self._once_ghosts.push(once, self._once.pop(once))
            return once
        assert again is not None
        self._again_ghosts.push(again, self._again.pop(again))
        return again

    def insert(self, key: str, size: int) -> None:
        if key in self._once or key in self._again:
            self.touch(key)
            return
        known = False
        for ghosts in (self._once_ghosts, self._again_ghosts):
            if key in ghosts:
                ghosts.pop(key)
                known = True
        (self._again if known else self._once).push(key, size)
        self._trim()

    def touch(self, key: str) -> None:
        for entries in (self._once, self._again):
            if key in entries:
                self._again.push(key, entries.pop(key))
                self._trim()
                return

    def forget(self, key: str) -> None:
        for entries in (self._once, self._again):
            if key in entries:
                entries.pop(key)

    def _trim(self) -> None:
        """Ghosts remember at most one capacity of what was seen once, and two of everything."""
        while self._once.bytes + self._once_ghosts.bytes > self._capacity:
            if not self._drop(self._once_ghosts):
                break
        while self._total() > 2 * self._capacity:
            if not self._drop(self._again_ghosts):
                break

    def _total(self) -> int:
        lists = (self._once, self._again, self._once_ghosts, self._again_ghosts)
        return sum(entries.bytes for entries in lists)

    def _drop(self, ghosts: _Queue) -> bool:
        oldest = ghosts.oldest()
        if oldest is not None:
            ghosts.pop(oldest)
        return oldest is not None


def make_eviction(name: str, capacity: int) -> Eviction:
    """``"lru"`` or ``"arc"``, for a store of `capacity` bytes."""
    return LRU() if name == "lru" else ARC(capacity)
