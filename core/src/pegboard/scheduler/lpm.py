"""Longest prefix match: requests that find most of their prompt in the cache are admitted first.

So what is cached is used before it is evicted. Two requests that begin alike are not computed side
by side: while one of them computes a beginning, the others step back until they can read it::

    cached      m units of the request are in the cache now
    wanted      the next units, `_SPAN` tokens of them
                                             0 ....... m ....... m + span ..... prompt
                 waiting, came first         |  cached | claimed  |
                 waiting, begins alike       |  cached | the same  -> steps back
                 running, prompt unfinished  |  computed | claims all the rest of its prompt

Hashes are chained, so one equal hash at the end of the span means that everything before is equal.
Only the order of admission depends on all this, never a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pegboard.kv import KVManager
from pegboard.scheduler.queue import SortedQueue, by_arrival
from pegboard.scheduler.request import Request

__all__ = ["LOOKED_AT", "PrefixQueue"]

LOOKED_AT = 128
"""Beyond so many waiting requests the order is that of arrival: each look costs a search."""
_SPAN = 32
"""Tokens of a common beginning, beyond what is cached, that are worth waiting for."""


class PrefixQueue:
    """A waiting queue by length of the cached beginning, then by arrival.

    Preempted requests come first, in order of arrival: they hold tokens that were paid for already.
    """

    def __init__(self, kv: KVManager) -> None:
        self._kv = kv
        self._span = max(-(-_SPAN // kv.prefix_match_unit), 1)
        self._arrivals = SortedQueue(by_arrival)
        self._running: Sequence[Request] = ()
        self._turns: list[Request] | None = None
        """Who is left in this step, the next one last; None before anybody asked."""

    def __iter__(self) -> Iterator[Request]:
        return iter(self._arrivals)

    def __len__(self) -> int:
        return len(self._arrivals)

    def push(self, request: Request) -> None:
        self._arrivals.push(request)

    def arrange(self, running: Sequence[Request]) -> None:
        self._running, self._turns = running, None
        self._arrivals.arrange(running)

    def peek(self) -> Request | None:
        if not self._sorts:
            return self._arrivals.peek()
        if self._turns is None:
            self._turns = self._rank()
        return self._turns[-1] if self._turns else None

    def set_aside(self, request: Request) -> None:
        if self._turns is None:
            self._arrivals.set_aside(request)
        else:
            self._turns.remove(request)

    def remove(self, request: Request) -> None:
        self._arrivals.remove(request)
        if self._turns is not None and request in self._turns:
            self._turns.remove(request)

    @property
    def _sorts(self) -> bool:
        """Matches decide: begun in this step already, or few enough to look at."""
        few = self._kv.caching and len(self._arrivals) <= LOOKED_AT
        return self._turns is not None or few

    def _rank(self) -> list[Request]:
        """Everybody who may be admitted now, the first one last."""
        claims, found = self._claims_of_running(), dict[int, set[bytes]]()
        ranked = []
        for request in sorted(self._arrivals, key=by_arrival):
            if request.admitted:
                ranked.append(((0, 0, request.order), request))
                continue
            cached = self._cached(request, found)
            claim = self._claim(request, cached)
            if claim is None or claim not in claims:
                ranked.append(((1, -cached, request.order), request))
            if claim is not None:
                claims.add(claim)
        ranked.sort(reverse=True)
        return [request for _, request in ranked]

    def _claims_of_running(self) -> set[bytes]:
        """Hashes of what running requests are about to compute of their prompts."""
        claims: set[bytes] = set()
        for request in self._running:
            if request.computed < request.num_prompt:
                claims.update(request.kv.hashes[request.kv.committed :])
        return claims

    def _cached(self, request: Request, found: dict[int, set[bytes]]) -> int:
        """Leading hash units that need not be computed, shared with a parent or cached.

        `found` has the ends of beginnings that were found for others, by length.
        """
        if request.fork is not None:
            return request.fork.tokens // self._kv.prefix_match_unit
        most, hashes = self._kv.hash_units(request.kv, request.readable), request.kv.hashes
        alike = (n for n, ends in found.items() if n <= most and hashes[n - 1] in ends)
        units = self._kv.cached_units(request.kv, request.readable, max(alike, default=0))
        if units:
            found.setdefault(units, set()).add(hashes[units - 1])
        return units

    def _claim(self, request: Request, cached: int) -> bytes | None:
        """The hash at the end of the next span, if the request is that long and reads the cache."""
        last = cached + self._span
        if request.fork is not None or last * self._kv.prefix_match_unit > request.readable:
            return None
        return request.kv.hashes[last - 1]
