"""What is on the disk, as far as the scheduler half knows, and the byte budget."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence

import attrs

from pegboard_connector_filesystem.eviction import Eviction
from pegboard_connector_filesystem.messages import Found

__all__ = ["Index"]

FORGOTTEN = 300.0
"""Seconds after which something that the worker never reported is no longer expected."""


@attrs.define
class _File:
    size: int
    used: int
    """Nanoseconds since the epoch."""


@attrs.define
class _Expected:
    size: int
    since: float


class Index:
    """Files by name, with sizes; room that is reserved for files on their way counts too.

    ::

        reserve ─► store     the file is written
                └► cancel    it is not
        evicted names ─► removed, when the worker has removed them
    """

    def __init__(
        self, capacity: int, policy: Eviction, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.bytes = 0
        """Of files and of room reserved."""
        self.evictions = 0
        self.version = 0
        """Grows with every change of what is there."""
        self._capacity = capacity
        self._policy = policy
        self._clock = clock
        self._files: dict[str, _File] = {}
        self._coming: dict[str, _Expected] = {}
        self._leaving: dict[str, float] = {}
        self._pins: Counter[str] = Counter()

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def __len__(self) -> int:
        return len(self._files)

    def names(self) -> list[str]:
        """All files."""
        return list(self._files)

    # Room

    def reserve(self, name: str, size: int) -> list[str] | None:
        """Room for a file that is to be written: names of the files to be removed first.

        None if it is there, on its way or being removed, or if there is no room for it. What was
        chosen as a victim stays one.
        """
        if name in self._files or name in self._coming or name in self._leaving:
            return None
        if size > self._capacity - self._unmovable():
            return None
        self._policy.expect(name, size)
        victims = self._evict(name, size)
        self._coming[name] = _Expected(size, self._clock())
        self.bytes += size
        return victims

    def overflow(self) -> list[str]:
        """Files to be removed so that the rest keeps the budget."""
        return self._evict("", 0)

    def _unmovable(self) -> int:
        """Bytes that cannot make room."""
        pinned = sum(self._files[name].size for name in self._pins if name in self._files)
        return pinned + sum(expected.size for expected in self._coming.values())

    def _evict(self, name: str, size: int) -> list[str]:
        victims = []
        while self.bytes + size > self._capacity:
            victim = self._policy.evict(name, self._pins)
            if victim is None:
                break
            self.bytes -= self._files.pop(victim).size
            self._leaving[victim] = self._clock()
            victims.append(victim)
        if victims:
            self.version += 1
            self.evictions += len(victims)
        return victims

    # What the worker reports

    def store(self, name: str) -> bool:
        """A reserved file is written; False if nobody expects it any more."""
        expected = self._coming.pop(name, None)
        if expected is None:
            return False
        self._enter(name, expected.size, time.time_ns())
        return True

    def cancel(self, name: str) -> None:
        """A reserved file is not written."""
        expected = self._coming.pop(name, None)
        if expected is not None:
            self.bytes -= expected.size

    def removed(self, name: str) -> None:
        """An evicted file is removed."""
        self._leaving.pop(name, None)

    def gone(self, name: str) -> bool:
        """A file is not there any more; False if it was not known."""
        file = self._files.pop(name, None)
        if file is None:
            return False
        self._policy.forget(name)
        self.bytes -= file.size
        self.version += 1
        return True

    def listed(
        self, files: Sequence[Found], stored: Container[str] = (), removed: Container[str] = ()
    ) -> tuple[list[str], list[str]]:
        """Take over what was found on the disk; names that are new, and names that are gone.

        `stored` and `removed` may have come about after the list was made.
        """
        there = {file.name for file in files}
        gone = [name for name in self._files if name not in there and name not in stored]
        for name in gone:
            self.gone(name)
        new = []
        for file in sorted(files, key=lambda file: (file.used, file.name)):
            known = self._files.get(file.name)
            if known is not None and file.used > known.used:  # another engine loaded it
                known.used = file.used
                self._policy.touch(file.name)
            elif self._unknown(file.name) and file.name not in removed:
                self.bytes += file.size
                self._enter(file.name, file.size, file.used)
                new.append(file.name)
        return new, gone

    def _unknown(self, name: str) -> bool:
        return not (name in self._files or name in self._coming or name in self._leaving)

    def _enter(self, name: str, size: int, used: int) -> None:
        self._files[name] = _File(size, used)
        self._policy.insert(name, size)
        self.version += 1

    # Use

    def use(self, names: Iterable[str]) -> None:
        """These files are about to be read: they are recent, and stay until `free`."""
        for name in names:
            if name in self._files:
                self._files[name].used = time.time_ns()
            self._policy.touch(name)
            self._pins[name] += 1

    def free(self, names: Iterable[str]) -> None:
        """The opposite."""
        for name in names:
            self._pins[name] -= 1
            if self._pins[name] <= 0:
                del self._pins[name]

    def sweep(self) -> None:
        """Stop waiting for reports that got lost."""
        limit = self._clock() - FORGOTTEN
        for name in [n for n, expected in self._coming.items() if expected.since < limit]:
            self.cancel(name)
        self._leaving = {n: since for n, since in self._leaving.items() if since >= limit}
