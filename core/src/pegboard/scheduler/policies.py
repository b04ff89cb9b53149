"""Scheduling policies: who is admitted first, and who gives way first when blocks are short.

A policy is a waiting queue and an order of the running requests. Running requests get their tokens
in that order, and its last one is preempted. To add a policy, add it to `POLICIES`.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping
from types import MappingProxyType

import attrs

from pegboard.kv import KVManager
from pegboard.scheduler.lpm import PrefixQueue
from pegboard.scheduler.queue import Rank, SortedQueue, WaitingQueue, by_arrival, by_priority
from pegboard.scheduler.request import Request

__all__ = ["POLICIES", "Policy"]


@attrs.frozen
class Policy:
    """One policy."""

    queue: Callable[[KVManager], WaitingQueue]
    rank: Rank | None = None
    """Order of the running requests; None: that of admission."""

    def seat(self, running: list[Request], request: Request) -> None:
        """Add a request to the running ones, at its place."""
        if self.rank is None:
            running.append(request)
        else:
            insort(running, request, key=self.rank)


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "fcfs": Policy(lambda kv: SortedQueue(by_arrival)),
        "lpm": Policy(PrefixQueue),
        "priority": Policy(lambda kv: SortedQueue(by_priority), by_priority),
    }
)
"""By the names of ``scheduling_policy``."""
