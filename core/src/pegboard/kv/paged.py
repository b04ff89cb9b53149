"""Groups that keep something per token: full, latent, sliding, chunked; cross and encoder-only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pegboard.api.kv import ChunkedLocalSpec, KVGroup, SlidingWindowSpec
from pegboard.kv.blocks import Block, BlockKey, BlockPool
from pegboard.kv.policy import UNBOUNDED, Finder, Part
from pegboard.kv.values import KVRequest, Source

__all__ = ["ChunkedPolicy", "CrossPolicy", "EncoderOnlyPolicy", "PagedPolicy", "SlidingPolicy"]


class PagedPolicy:
    """Entry i holds tokens ``i * block_size`` and on. Any beginning can be resumed whose tokens
    from `first_token` on are there."""

    cacheable = True
    forgets = False

    def __init__(self, group: KVGroup, unit: int) -> None:
        self.index = group.index
        self.block_size = group.block_size
        self._unit = unit
        self._per = max(group.block_size // unit, 1)  # hash units of a block

    def first_token(self, computed: int) -> int:
        """The first token that the one after `computed` tokens attends to."""
        return 0

    def entries(self, tokens: int, encoder_tokens: int) -> int:
        return -(-tokens // self.block_size)

    def skipped(self, have: int, want: int) -> int:
        return 0

    def capacity(self, entries: int) -> int:
        return entries * self.block_size

    def first_entry(self, computed: int) -> int:
        return self.first_token(computed) // self.block_size

    def leaves_at(self, entry: int) -> int:
        return UNBOUNDED

    def longest(self, pool: Finder, hashes: Sequence[bytes], limit: int) -> int:
        per, number, most = self._per, 0, limit // self._per
        while number < most and pool.find(self._key(hashes, number)) is not None:
            number += 1
        units = number * per
        for rest in range(min(per - 1, limit - units), 0, -1):
            if pool.find((self.index, hashes[units + rest - 1])) is not None:
                return units + rest
        return units

    def begin(self, pool: BlockPool, hashes: Sequence[bytes], units: int) -> Part:
        tokens = units * self._unit
        first, full = self._range(tokens)
        blocks = [pool.null] * first
        for number in range(first, full):
            found = pool.find(self._key(hashes, number))
            assert found is not None, f"group {self.index}: block {number} of a hit is gone"
            blocks.append(found)
        if not self._needs_part(tokens):
            return blocks, None
        part = pool.find((self.index, hashes[units - 1]))
        assert part is not None, f"group {self.index}: the last block of a hit is gone"
        return blocks, Source(self.index, part, tokens % self.block_size)

    def commit(self, pool: BlockPool, request: KVRequest, units: int, computed: int) -> None:
        table, per, null = request.tables[self.index], self._per, pool.null
        for number in range(request.committed, units):
            block, key = table[number // per], (self.index, request.hashes[number])
            if block is not null and key not in block.keys:
                pool.file(block, key)

    def completed(self, before: int, computed: int) -> range:
        return range(before // self.block_size, computed // self.block_size)

    def file(self, pool: BlockPool, block: Block, hashes: Sequence[bytes], entry: int) -> None:
        for number in range(entry * self._per, (entry + 1) * self._per):
            key = (self.index, hashes[number])
            if key not in block.keys:
                pool.file(block, key)

    def fork(
        self, pool: BlockPool, table: Sequence[Block], tokens: int, snapshots: Mapping[int, Block]
    ) -> Part | None:
        first, full = self._range(tokens)
        shared = [*table[first:full]]
        source = None
        if self._needs_part(tokens):
            source = Source(self.index, table[full], tokens % self.block_size)
        if pool.null in shared or (source is not None and source.block is pool.null):
            return None
        return [pool.null] * first + shared, source

    def _key(self, hashes: Sequence[bytes], number: int) -> BlockKey:
        """Key of the whole block `number`."""
        return self.index, hashes[(number + 1) * self._per - 1]

    def _range(self, tokens: int) -> tuple[int, int]:
        """Entries of whole blocks that a beginning of `tokens` tokens needs."""
        full = tokens // self.block_size
        return min(self.first_entry(tokens), full), full

    def _needs_part(self, tokens: int) -> bool:
        """The beginning ends inside a block and needs what is in it."""
        return bool(tokens % self.block_size) and self.first_token(tokens) < tokens


class WindowPolicy(PagedPolicy):
    """Only the last tokens matter, so that a hit need not reach back to the first block."""

    forgets = True

    def longest(self, pool: Finder, hashes: Sequence[bytes], limit: int) -> int:
        units = limit
        while units > 0:
            missing = self._missing(pool, hashes, units)
            if missing is None:
                return units
            # Whatever reaches beyond the missing block needs it too, for windows only move on.
            units = min(units - 1, (missing + 1) * self._per - 1)
        return 0

    def _missing(self, pool: Finder, hashes: Sequence[bytes], units: int) -> int | None:
        """The last entry that a beginning of `units` units lacks."""
        tokens = units * self._unit
        first, full = self._range(tokens)
        if self._needs_part(tokens) and pool.find((self.index, hashes[units - 1])) is None:
            return full
        for number in range(full - 1, first - 1, -1):
            if pool.find(self._key(hashes, number)) is None:
                return number
        return None


class SlidingPolicy(WindowPolicy):
    """A token needs itself and the ``window - 1`` before it."""

    def __init__(self, group: KVGroup, unit: int) -> None:
        super().__init__(group, unit)
        assert isinstance(group.spec, SlidingWindowSpec)
        self._window = group.spec.window

    def first_token(self, computed: int) -> int:
        return max(computed - self._window + 1, 0)

    def leaves_at(self, entry: int) -> int:
        return (entry + 1) * self.block_size + self._window - 1


class ChunkedPolicy(WindowPolicy):
    """A token needs its chunk so far. A beginning that ends with a chunk needs nothing at all, so
    that a model of such layers only may skip whole chunks that nobody ever computed."""

    def __init__(self, group: KVGroup, unit: int) -> None:
        super().__init__(group, unit)
        assert isinstance(group.spec, ChunkedLocalSpec)
        self._chunk = group.spec.chunk

    def first_token(self, computed: int) -> int:
        return computed // self._chunk * self._chunk

    def leaves_at(self, entry: int) -> int:
        return -(-(entry + 1) * self.block_size // self._chunk) * self._chunk


class CrossPolicy(PagedPolicy):
    """The encoder's tokens, all there from the first step on.

    They are not named by the hashes of the prompt, so models with cross-attention have no hits.
    """

    cacheable = False

    def entries(self, tokens: int, encoder_tokens: int) -> int:
        return -(-encoder_tokens // self.block_size)

    def capacity(self, entries: int) -> int:
        return UNBOUNDED

    def commit(self, pool: BlockPool, request: KVRequest, units: int, computed: int) -> None:
        raise AssertionError("a model with cross-attention shares nothing")

    def fork(
        self, pool: BlockPool, table: Sequence[Block], tokens: int, snapshots: Mapping[int, Block]
    ) -> Part | None:
        return [*table], None


class EncoderOnlyPolicy(CrossPolicy):
    """Encoder-only attention: no entries at all."""

    def entries(self, tokens: int, encoder_tokens: int) -> int:
        return 0
