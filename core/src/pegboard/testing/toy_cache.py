"""The toy executor's cache: token ids in blocks, and what each kind of group may read of them.

All groups share the blocks, as they share memory on a device. A block remembers which group wrote
it last, so that a block that two groups hold at once is noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pegboard.api.kv import (
    ChunkedLocalSpec,
    CrossAttentionSpec,
    EncoderOnlySpec,
    KVCacheConfig,
    KVGroup,
    RecurrentSpec,
    SlidingWindowSpec,
)
from pegboard.api.step import BlockCopy

__all__ = ["RowCache", "ToyCache", "ToyRow"]


class ToyRow:
    """A request on the device."""

    def __init__(self, ids: list[int], tables: Sequence[Sequence[int]]) -> None:
        self.ids = ids
        self.tables = [list(blocks) for blocks in tables]
        self.encoded = False
        """The encoder's tokens are written, or came with a fork."""


class RowCache(Protocol):
    """What the toy executor stores rows in."""

    def copy(self, copy: BlockCopy) -> None: ...

    def holds_state(self, group: int) -> bool: ...

    def block_size(self, group: int) -> int: ...

    def recall(self, row: ToyRow, start: int) -> None:
        """Check what a step that begins at `start` reads before it writes."""
        ...

    def written(self, row: ToyRow, start: int, stop: int) -> set[int]:
        """Blocks that `write` of the tokens ``start`` to ``stop`` changes."""
        ...

    def write(self, row: ToyRow, start: int, stop: int) -> None:
        """Store tokens ``start`` to ``stop``."""
        ...

    def verify(self, slot: int, row: ToyRow, start: int, stop: int) -> None:
        """Everything that these tokens attend to is what the row's own tokens would have stored."""
        ...


class ToyCache:
    """Blocks, and one store per group over them."""

    def __init__(self, cache: KVCacheConfig) -> None:
        self._blocks: list[tuple[int, list[int]]] = [(-1, []) for _ in range(cache.num_blocks)]
        self._stores = [_make_store(group, self._blocks) for group in cache.groups]
        self._sizes = [group.block_size for group in cache.groups]

    def copy(self, copy: BlockCopy) -> None:
        assert 0 not in (copy.source, copy.target), "the null block is copied"
        self._stores[copy.group].copy(copy)

    def block_size(self, group: int) -> int:
        return self._sizes[group]

    def holds_state(self, group: int) -> bool:
        return isinstance(self._stores[group], _State)

    def recall(self, row: ToyRow, start: int) -> None:
        """Check what a step that begins at `start` reads before it writes."""
        for store in self._stores:
            store.recall(row, start)

    def written(self, row: ToyRow, start: int, stop: int) -> set[int]:
        """Blocks that `write` of the tokens ``start`` to ``stop`` changes."""
        return {block for store in self._stores for block in store.written(row, start, stop)} - {0}

    def write(self, row: ToyRow, start: int, stop: int) -> None:
        """Store tokens ``start`` to ``stop``."""
        assert stop <= len(row.ids), f"tokens up to {stop} planned, {len(row.ids)} known"
        for store in self._stores:
            store.write(row, start, stop)
        row.encoded = True

    def verify(self, slot: int, row: ToyRow, start: int, stop: int) -> None:
        """Everything that these tokens attend to is what the row's own tokens would have stored."""
        for store in self._stores:
            store.verify(slot, row, start, stop)


class _Store:
    """Full and latent attention: the ids of all tokens."""

    def __init__(self, group: KVGroup, blocks: list[tuple[int, list[int]]]) -> None:
        self.group = group.index
        self.size = group.block_size
        self.blocks = blocks

    def first(self, position: int) -> int:
        """The first token that the one at `position` attends to."""
        return 0

    def content(self, block: int) -> list[int]:
        """The block as this group sees it; what others wrote is worthless."""
        owner, content = self.blocks[block]
        if owner != self.group:
            content = [-1] * self.size
            self.blocks[block] = (self.group, content)
        return content

    def copy(self, copy: BlockCopy) -> None:
        source = self.content(copy.source)[: copy.tokens]
        self.content(copy.target)[: copy.tokens] = source

    def recall(self, row: ToyRow, start: int) -> None:
        """Attention reads after it wrote; see `verify`."""

    def written(self, row: ToyRow, start: int, stop: int) -> list[int]:
        """Blocks that hold the tokens ``start`` to ``stop``."""
        return row.tables[self.group][start // self.size : (stop - 1) // self.size + 1]

    def write(self, row: ToyRow, start: int, stop: int) -> None:
        table = row.tables[self.group]
        for position in range(start, stop):
            block = table[position // self.size]
            assert block != 0, "the null block is written"
            self.content(block)[position % self.size] = row.ids[position]

    def verify(self, slot: int, row: ToyRow, start: int, stop: int) -> None:
        table, first = row.tables[self.group], self.first(start)
        read = [self._read(table, position) for position in range(first, stop)]
        assert read == row.ids[first:stop], (
            f"slot {slot}, group {self.group}: block table {table} gives {read} from token {first} "
            f"on, expected {row.ids[first:stop]}"
        )

    def _read(self, table: list[int], position: int) -> int:
        owner, content = self.blocks[table[position // self.size]]
        return content[position % self.size] if owner == self.group else -1


class _Sliding(_Store):
    def __init__(self, group: KVGroup, blocks: list[tuple[int, list[int]]]) -> None:
        super().__init__(group, blocks)
        assert isinstance(group.spec, SlidingWindowSpec)
        self.window = group.spec.window

    def first(self, position: int) -> int:
        return max(0, position - (self.window - 1))


class _Chunked(_Store):
    def __init__(self, group: KVGroup, blocks: list[tuple[int, list[int]]]) -> None:
        super().__init__(group, blocks)
        assert isinstance(group.spec, ChunkedLocalSpec)
        self.chunk = group.spec.chunk

    def first(self, position: int) -> int:
        return position - position % self.chunk


class _State(_Store):
    """Recurrent state: all ids up to some length, in one block."""

    def __init__(self, group: KVGroup, blocks: list[tuple[int, list[int]]]) -> None:
        super().__init__(group, blocks)
        assert isinstance(group.spec, RecurrentSpec)
        self.everywhere = group.spec.cache == "all"

    def copy(self, copy: BlockCopy) -> None:
        self.blocks[copy.target] = (self.group, list(self.content(copy.source)))

    def recall(self, row: ToyRow, start: int) -> None:
        if start == 0:
            return
        block = row.tables[self.group][(start - 1) // self.size]
        assert self.blocks[block] == (self.group, row.ids[:start]), (
            f"group {self.group}: block {block} has state {self.blocks[block]}, "
            f"expected that after {row.ids[:start]}"
        )

    def write(self, row: ToyRow, start: int, stop: int) -> None:
        lengths = {stop}
        if self.everywhere:
            lengths |= {n for n in range(start + 1, stop) if n % self.size == 0}
        for length in lengths:
            block = row.tables[self.group][(length - 1) // self.size]
            assert block != 0, "the null block is written"
            self.blocks[block] = (self.group, row.ids[:length])

    def verify(self, slot: int, row: ToyRow, start: int, stop: int) -> None:
        """The state was read before it was overwritten; see `recall`."""


class _Cross(_Store):
    """The encoder's tokens, for which the prompt's first id stands."""

    def written(self, row: ToyRow, start: int, stop: int) -> list[int]:
        return row.tables[self.group] if start == 0 else []

    def write(self, row: ToyRow, start: int, stop: int) -> None:
        if row.encoded or start > 0:
            return
        for block in row.tables[self.group]:
            self.blocks[block] = (self.group, [row.ids[0]])

    def verify(self, slot: int, row: ToyRow, start: int, stop: int) -> None:
        for block in row.tables[self.group]:
            assert self.blocks[block] == (self.group, [row.ids[0]]), (
                f"slot {slot}, group {self.group}: block {block} is not the encoder's"
            )


class _Nothing(_Store):
    """Encoder-only attention keeps nothing."""

    def write(self, row: ToyRow, start: int, stop: int) -> None:
        assert row.tables[self.group] == [], "blocks where nothing is kept"

    def verify(self, slot: int, row: ToyRow, start: int, stop: int) -> None:
        """Nothing is read either."""


def _make_store(group: KVGroup, blocks: list[tuple[int, list[int]]]) -> _Store:
    kinds = {
        SlidingWindowSpec: _Sliding,
        ChunkedLocalSpec: _Chunked,
        RecurrentSpec: _State,
        CrossAttentionSpec: _Cross,
        EncoderOnlySpec: _Nothing,
    }
    return kinds.get(type(group.spec), _Store)(group, blocks)
