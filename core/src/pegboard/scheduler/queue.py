"""The order in which waiting requests are admitted."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from pegboard.scheduler.request import Request

__all__ = ["ArrivalQueue"]


class ArrivalQueue:
    """First come, first served: by order of arrival, whatever the order of pushing.

    A preempted request arrived before all that were not yet admitted, so it is back at the head.
    """

    def __init__(self) -> None:
        self._heap: list[int] = []  # orders; those of removed requests stay until they come up
        self._live: dict[int, Request] = {}
        self._aside: list[int] = []

    def __iter__(self) -> Iterator[Request]:
        """All waiting requests, in no particular order."""
        return iter(self._live.values())

    def push(self, request: Request) -> None:
        assert request.order not in self._live, f"request {request.request_id!r} is queued twice"
        self._live[request.order] = request
        heapq.heappush(self._heap, request.order)

    def arrange(self) -> None:
        """A step is planned: those set aside are looked at again."""
        for order in self._aside:
            heapq.heappush(self._heap, order)
        self._aside.clear()

    def set_aside(self, request: Request) -> None:
        """Pass over the request that `peek` gave, until the next step."""
        assert self.peek() is request, f"{request.request_id!r} is not the next"
        self._aside.append(heapq.heappop(self._heap))

    def peek(self) -> Request | None:
        """The next request to admit."""
        while self._heap and self._heap[0] not in self._live:
            heapq.heappop(self._heap)
        return self._live[self._heap[0]] if self._heap else None

    def remove(self, request: Request) -> None:
        """Take out a request, wherever it stands."""
        del self._live[request.order]
        if request.order in self._aside:  # else it would be listed twice when it is queued again
            self._aside.remove(request.order)
        elif self._heap and self._heap[0] == request.order:
            heapq.heappop(self._heap)
