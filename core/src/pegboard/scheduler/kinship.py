"""How many leading blocks the running requests have in common.

Blocks get into several tables by hits and forks alone, when all their tokens are computed; what is
appended to a table later belongs to one request. So common blocks are never being written, and what
a set of requests has in common changes only as its members do.
"""

from __future__ import annotations

from collections.abc import Sequence

from pegboard.api.kv import KVGroup
from pegboard.kv import Block
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
    agreed, which costs nothing where nothing is shared.
    """

    def __init__(self, group: int) -> None:
        self.group = group
        self._witnesses: tuple[Request, Request] | None = None
        self._length = 0

    def joined(self, request: Request) -> None:
        if self._witnesses is None:
            return  # whoever asks next has all compared
        one, _ = self._witnesses
        length = self._agreement(one, request, self._length)
        if length < self._length:
            self._length, self._witnesses = length, (one, request)

    def left(self, request: Request) -> None:
        if self._witnesses is not None and request in self._witnesses:
            self._witnesses = None

    def length(self, running: Sequence[Request]) -> int:
        if len(running) < 2:
            return 0
        if self._witnesses is None:
            one, other = running[-1], running[-2]  # the first ones are likely to end first
            self._witnesses = one, other
            self._length = self._agreement(one, other, len(one.kv.tables[self.group]))
            for request in running[:-2] if self._length else ():
                self.joined(request)
        return self._length

    def _agreement(self, one: Request, other: Request, most: int) -> int:
        """Leading blocks, `most` of them at most, that two tables have in common."""
        mine, theirs = one.kv.tables[self.group], other.kv.tables[self.group]
        limit = min(most, len(mine), len(theirs))
        if mine[:limit] == theirs[:limit]:
            return limit
        return _parting(mine, theirs, limit)


def _parting(mine: Sequence[Block], theirs: Sequence[Block], limit: int) -> int:
    """The first place below `limit` at which two tables differ; they do."""
    return next(place for place in range(limit) if mine[place] is not theirs[place])
