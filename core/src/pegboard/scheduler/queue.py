"""The waiting requests, and in which order they are admitted."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from pegboard.scheduler.request import Request

__all__ = ["Rank", "SortedQueue", "WaitingQueue", "by_arrival", "by_priority"]

Rank = Callable[[Request], tuple[int, int]]
"""Place in an order: the lower first, no two alike, the same as long as a request lives."""


def by_arrival(request: Request) -> tuple[int, int]:
    """First come, first served. A preempted request arrived before all that were not yet admitted,
    so it is back at the head."""
    return 0, request.order


def by_priority(request: Request) -> tuple[int, int]:
    """The lower priority value first, then by arrival, however often a request was preempted."""
    return request.origin.priority, request.order


class WaitingQueue(Protocol):
    """Holds requests that wait. The scheduler decides when, the queue decides who.

    Per step: `arrange`, then any number of `peek`, `remove` and `set_aside`. Which request comes
    first must not change the tokens of any, and somebody must come first as long as nothing runs.
    """

    def __iter__(self) -> Iterator[Request]:
        """All waiting requests, in no particular order."""
        ...

    def __len__(self) -> int: ...

    def push(self, request: Request) -> None:
        """Take in a request: a new one, a child, or one that was preempted."""
        ...

    def arrange(self, running: Sequence[Request]) -> None:
        """A step is planned: all may be looked at again. `running` may be read until the next
        step."""
        ...

    def peek(self) -> Request | None:
        """The next request to admit; None if nobody is to be admitted in this step any more."""
        ...

    def set_aside(self, request: Request) -> None:
        """Pass over the request that `peek` gave, until the next step."""
        ...

    def remove(self, request: Request) -> None:
        """Take out a request, wherever it stands."""
        ...


class SortedQueue:
    """A waiting queue in a fixed order."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._live: dict[tuple[int, int], Request] = {}
        self._heap: list[tuple[int, int]] = []  # removed requests are skipped when they come up
        self._listed: set[tuple[int, int]] = set()  # what is in the heap, each place once
        self._aside: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[Request]:
        return iter(self._live.values())

    def __len__(self) -> int:
        return len(self._live)

    def push(self, request: Request) -> None:
        place = self._rank(request)
        assert place not in self._live, f"request {request.request_id!r} is queued twice"
        self._live[place] = request
        self._list(place)

    def arrange(self, running: Sequence[Request]) -> None:
        for place in self._aside:
            self._list(place)
        self._aside.clear()

    def peek(self) -> Request | None:
        while self._heap and self._heap[0] not in self._live:
            self._unlist_first()
        return self._live[self._heap[0]] if self._heap else None

    def set_aside(self, request: Request) -> None:
        assert self.peek() is request, f"{request.request_id!r} is not the next"
        self._aside.append(self._unlist_first())

    def remove(self, request: Request) -> None:
        del self._live[self._rank(request)]

    def _list(self, place: tuple[int, int]) -> None:
        if place not in self._listed:
            self._listed.add(place)
            heapq.heappush(self._heap, place)

    def _unlist_first(self) -> tuple[int, int]:
        place = heapq.heappop(self._heap)
        self._listed.remove(place)
        return place
