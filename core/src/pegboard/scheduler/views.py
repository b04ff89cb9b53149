"""Views of the scheduler's books for connectors: they show, and cannot change, what is there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, overload

from pegboard.api.views import BlocksView, RequestView
from pegboard.scheduler.request import Request

__all__ = ["NO_BLOCKS", "ReadOnly", "blocks_view", "request_view"]

T = TypeVar("T")


class ReadOnly(Sequence[T]):
    """The first `length` items of a list that somebody else owns, without a copy."""

    __slots__ = ("_items", "_length")

    def __init__(self, items: list[T], length: int | None = None) -> None:
        self._items = items
        self._length = len(items) if length is None else length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            return tuple(self._items[start:stop:step]) if step > 0 else tuple(self)[index]
        if not -self._length <= index < self._length:
            raise IndexError(f"index {index} of a sequence of {self._length}")
        return self._items[index if index >= 0 else index + self._length]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(list(self))


NO_BLOCKS: BlocksView = BlocksView(())
"""A view without groups: nothing is held."""


def blocks_view(tables: Iterable[Iterable[int]]) -> BlocksView:
    """Block ids per group, copied."""
    return BlocksView(tuple(tuple(table) for table in tables))


def request_view(request: Request, hashes: list[bytes]) -> RequestView:
    """A request as connectors see it, with these block hashes."""
    origin = request.origin
    return RequestView(
        request_id=origin.request_id,
        prompt_ids=ReadOnly(origin.prompt_ids),
        output_ids=ReadOnly(request.output_ids),
        computed=request.computed,
        block_hashes=ReadOnly(hashes),
        priority=origin.priority,
        arrival=origin.arrival,
        params=origin.params,
        cache_salt=origin.cache_salt,
        adapter=origin.adapter,
        media=ReadOnly(origin.media),
        kv_transfer=origin.kv_transfer,
    )
