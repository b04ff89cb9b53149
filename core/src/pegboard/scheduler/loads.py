"""Loads on their way, and blocks that are lent to the connector. All have a time limit.

::

    Now     offered ─► started (its request runs) ─► its step's update: good, or bad blocks
               │
               └─ withdrawn: the request did not start after all

    Later   waiting (its request waits) ─► over ─► the request goes back to the queue
               │                            ▲
               └─ request ended ─► orphan ──┴─ or time is up ─► lost

A load is *lost* if it is over for its request, but perhaps not for the worker. Its blocks are held
without a time limit: nobody may use them before the worker has stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from pegboard.api.connector import Load, TransferReport
from pegboard.kv import Block, Fork
from pegboard.scheduler.request import Request

__all__ = ["Flight", "HoldBook", "LoadBook"]

Clock = Callable[[], float]


class Flight(msgspec.Struct, eq=False):
    """One load on its way."""

    load: Load
    request: Request | None
    """Who wants it; None for an orphan."""
    fork: Fork
    """References on the whole beginning. Those of a `Now` load move to the request when it
    starts."""
    local: int
    """Leading tokens that the own cache had."""
    deadline: float
    failed: set[tuple[int, int]] = msgspec.field(default_factory=set)
    """(group, block) of those that could not be filled."""
    epoch: int = -1
    """Of a `Now` load: the request's epoch when it started."""

    def fail(self) -> None:
        """Nothing of it was loaded."""
        self.failed.update((piece.group, piece.block) for piece in self.load.pieces)


class LoadBook:
    """All loads that are not over."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._flights: dict[int, Flight] = {}
        self._of: dict[Request, Flight] = {}  # waiting requests and their `Later` loads
        self._now: dict[int, list[Flight]] = {}  # `Now` loads by the step that reads them

    def __bool__(self) -> bool:
        return bool(self._flights)

    def add(self, flight: Flight) -> None:
        """A `Later` load begins; its request waits."""
        assert flight.request is not None
        self._flights[flight.load.load_id] = flight
        self._of[flight.request] = flight

    def start(self, step_id: int, flight: Flight) -> None:
        """A `Now` load begins with a step."""
        self._flights[flight.load.load_id] = flight
        self._now.setdefault(step_id, []).append(flight)

    def orphan(self, request: Request) -> int | None:
        """A request ended; the id of the load it was waiting for, if any."""
        flight = self._of.pop(request, None)
        if flight is None:
            return None
        flight.request = None
        return flight.load.load_id

    def note_failures(self, report: TransferReport) -> None:
        """Remember bad blocks of loads that are known."""
        for bad in report.failed:
            flight = self._flights.get(bad.load_id)
            if flight is None:
                continue
            if any((p.group, p.block) == (bad.group, bad.block) for p in flight.load.pieces):
                flight.failed.add((bad.group, bad.block))

    def over(self, load_ids: Iterable[int]) -> Iterator[Flight]:
        """Take out the `Later` loads among these."""
        for load_id in load_ids:
            flight = self._flights.get(load_id)
            if flight is not None and not flight.load.now:
                yield self._take(flight)

    def of_step(self, step_id: int) -> list[Flight]:
        """Take out the `Now` loads of a step."""
        return [self._take(flight) for flight in self._now.pop(step_id, ())]

    def expired(self) -> list[Flight]:
        """Take out the `Later` loads whose time is up."""
        if not self._flights:
            return []
        now = self._clock()
        late = [f for f in self._flights.values() if not f.load.now and f.deadline <= now]
        return [self._take(flight) for flight in late]

    def waiting(self) -> Iterator[Request]:
        """Requests that wait for their loads."""
        return iter(self._of)

    def forks(self) -> list[Fork]:
        """References that the loads hold."""
        return [flight.fork for flight in self._flights.values() if not flight.load.now]

    def _take(self, flight: Flight) -> Flight:
        del self._flights[flight.load.load_id]
        if flight.request is not None:
            self._of.pop(flight.request, None)
        return flight


class _Hold(msgspec.Struct):
    blocks: list[Block]
    deadline: float


class HoldBook:
    """Blocks that nobody may use again before the worker says so, or their time is up."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._holds: dict[int, _Hold] = {}

    def __bool__(self) -> bool:
        return bool(self._holds)

    def add(self, name: int, blocks: list[Block], timeout: float) -> None:
        """Hold these (referenced) blocks for at most `timeout` seconds."""
        assert name not in self._holds, f"hold {name} exists"
        self._holds[name] = _Hold(blocks, self._clock() + timeout)

    def release(self, names: Iterable[int]) -> list[Block]:
        """Blocks whose references are to be given up; unknown names are ignored."""
        found = [self._holds.pop(name) for name in dict.fromkeys(names) if name in self._holds]
        return [block for hold in found for block in hold.blocks]

    def expired(self) -> list[Block]:
        """The same for those whose time is up."""
        if not self._holds:
            return []
        now = self._clock()
        return self.release([n for n, hold in self._holds.items() if hold.deadline <= now])

    def names(self) -> list[int]:
        """All holds."""
        return list(self._holds)

    def blocks(self) -> list[Block]:
        """All blocks held."""
        return [block for hold in self._holds.values() for block in hold.blocks]
