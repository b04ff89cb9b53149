"""How many leading blocks the running requests have in common.

Blocks get into several tables by hits and forks alone, when all their tokens are computed; what is
appended to a table later belongs to one request. So common blocks are never being written, and what
a set of requests has in common changes only as its members do.
"""

from __future__ import annotations

from collections.abc import Sequence

from pegboard.api.kv import KVGroup
from pegboard.scheduler.request import Request

__all__ = ["Kinship"]

_WHOLE = ("full", "latent")
"""Kinds whose groups keep a request's blocks from the first on."""


class Kinship:
    """Follows, for every KV group, the blocks with which all running requests begin."""

    def __init__(self, groups: Sequence[KVGroup]) -> None:
        self._count = len(groups)
        self._common = [_Common(group.index) for group in groups if group.spec.kind in _WHOLE]

    def joined(self, request: Request) -> None:
        """`request` is running now, and has its first blocks."""
        for common in self._common:
            common.joined(request)

    def left(self, request: Request) -> None:
        """`request` is not running any more."""
        for common in self._common:
            common.left(request)

    def blocks(self, running: Sequence[Request]) -> list[int]:
        """Per group, the leading blocks of all of `running`, which are those that joined and did
        not leave; empty if there are none, or fewer than two requests."""
        found = [(common.group, common.length(running)) for common in self._common]
        if not any(length for _, length in found):
            return []
        lengths = [0] * self._count
        for group, length in found:
            lengths[group] = length
        return lengths

    def check(self, running: Sequence[Request]) -> None:
        """Raise `AssertionError` where the lengths are not the greatest that are right."""
        for common in self._common:
            tables = [request.kv.tables[common.group] for request in running]
            places = enumerate(zip(*tables, strict=False))
            parting = (place for place, blocks in places if len(set(blocks)) > 1)
            whole = min(map(len, tables), default=0) if len(tables) > 1 else 0
            found, wanted = common.length(running), min(next(parting, whole), whole)
            assert found == wanted, f"group {common.group}: {found} blocks, {wanted} in common"


class _Common:
    """One group.

    Two *witnesses* are remembered, whose tables agree on exactly that length, so that nothing can
    be gained while both are there: whoever joins is compared with one of them, no further than all
    agreed, which costs nothing where nothing is shared. When a witness leaves, the others still
    agree on that length, and are compared from there on.
    """

    def __init__(self, group: int) -> None:
        self.group = group
        self._one: Request | None = None
        """With whom all others agree on `_length` blocks at least."""
        self._limit: Request | None = None
        """Who agrees with it on no more; None if that is not known."""
        self._length = 0

    def joined(self, request: Request) -> None:
        if self._one is None:
            return  # whoever asks next has all compared
        length = self._agreement(self._one, request, 0, self._length)
        if length < self._length:
            self._length, self._limit = length, request

    def left(self, request: Request) -> None:
        if request is self._one:
            self._one, self._limit = self._limit, None
        elif request is self._limit:
            self._limit = None

    def length(self, running: Sequence[Request]) -> int:
        if len(running) < 2:
            return 0
        if self._limit is None:
            self._compare(running)
        return self._length

    def _compare(self, running: Sequence[Request]) -> None:
        """Find the length and two witnesses."""
        if self._one is None:
            self._one, self._length = running[-1], 0  # the first ones are likely to end first
        one, agreed = self._one, self._length
        best = len(one.kv.tables[self.group]) + 1
        for request in running:
            if request is not one:
                length = self._agreement(one, request, agreed, best)
                if length < best:
                    best, self._limit = length, request
                if best == agreed:
                    break
        self._length = best

    def _agreement(self, one: Request, other: Request, start: int, most: int) -> int:
        """Leading blocks, `most` of them at most, that two tables have in common; they have
        `start`."""
        mine, theirs = one.kv.tables[self.group], other.kv.tables[self.group]
        limit = min(most, len(mine), len(theirs))
        if mine[start:limit] == theirs[start:limit]:
            return limit
        return next(place for place in range(start, limit) if mine[place] is not theirs[place])
