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

    def __iter__(self) -> Iterator[Request]:
        """All waiting requests, in no particular order."""
        return iter(self._live.values())

    def push(self, request: Request) -> None:
        assert request.order not in self._live, f"request {request.request_id!r} is queued twice"
        self._live[request.order] = request
        heapq.heappush(self._heap, request.order)

    def peek(self) -> Request | None:
        """The next request to admit."""
        while self._heap and self._heap[0] not in self._live:
            heapq.heappop(self._heap)
        return self._live[self._heap[0]] if self._heap else None

    def remove(self, request: Request) -> None:
        """Take out a request, wherever it stands."""
        del self._live[request.order]
