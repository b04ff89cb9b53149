"""Groups of recurrent state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pegboard.api.kv import KVGroup, RecurrentSpec
from pegboard.kv.blocks import Block, BlockPool
from pegboard.kv.policy import Finder, Part
from pegboard.kv.values import KVRequest, Source

__all__ = ["StatePolicy"]


class StatePolicy:
    """Recurrent state; see `pegboard.api.kv.RecurrentSpec` for where each state lies."""

    def __init__(self, group: KVGroup, unit: int) -> None:
        assert isinstance(group.spec, RecurrentSpec)
        self.index = group.index
        self.block_size = group.block_size
        self._mode = group.spec.cache
        self.cacheable = self.forgets = self._mode != "none"
        self._per = max(group.block_size // unit, 1)

    def entries(self, tokens: int, encoder_tokens: int) -> int:
        return -(-tokens // self.block_size)

    def skipped(self, have: int, want: int) -> int:
        return 0 if self._mode == "all" else max(want - have - 1, 0)

    def capacity(self, entries: int) -> int:
        return entries * self.block_size

    def entry(self, tokens: int) -> int:
        """The entry that holds the state after `tokens` tokens, at least 1."""
        return (tokens - 1) // self.block_size

    def first_entry(self, computed: int) -> int:
        return self.entry(max(computed, 1))

    def leaves_at(self, entry: int) -> int:
        return (entry + 1) * self.block_size + 1

    def cut(self, start: int, count: int) -> int:
        """Shorten a chunk so that it ends where a state is kept; at least 1 token."""
        if self._mode != "align":
            return count
        border = (start + count) // self.block_size * self.block_size
        return border - start if border > start else count

    def longest(self, pool: Finder, hashes: Sequence[bytes], limit: int) -> int:
        per = self._per
        for units in range(limit // per * per, 0, -per):
            if pool.find((self.index, hashes[units - 1])) is not None:
                return units
        return 0

    def begin(self, pool: BlockPool, hashes: Sequence[bytes], units: int) -> Part:
        if units == 0:
            return [], None
        state = pool.find((self.index, hashes[units - 1]))
        assert state is not None, f"group {self.index}: the state of a hit is gone"
        return [pool.null] * (units // self._per - 1) + [state], None

    def commit(self, pool: BlockPool, request: KVRequest, units: int, computed: int) -> None:
        table, per = request.tables[self.index], self._per
        first, stop = request.committed // per, units // per
        if self._mode == "align":  # only a step that ends at a border leaves its state
            first = stop - 1 if computed % self.block_size == 0 else stop
        for number in range(first, stop):
            block, key = table[number], (self.index, request.hashes[(number + 1) * per - 1])
            if block is not pool.null and key not in block.keys:
                pool.file(block, key)

    def completed(self, before: int, computed: int) -> range:
        stop = computed // self.block_size
        if self._mode == "all":
            return range(before // self.block_size, stop)
        return range(stop - 1 if computed % self.block_size == 0 else stop, stop)

    def file(self, pool: BlockPool, block: Block, hashes: Sequence[bytes], entry: int) -> None:
        key = (self.index, hashes[(entry + 1) * self._per - 1])
        if key not in block.keys:
            pool.file(block, key)

    def fork(
        self, pool: BlockPool, table: Sequence[Block], tokens: int, snapshots: Mapping[int, Block]
    ) -> Part | None:
        if tokens == 0:
            return [], None
        state = snapshots.get(self.index)
        if state is None:
            return None
        rest = tokens % self.block_size
        begun = [pool.null] * self.entry(tokens)
        return (begun, Source(self.index, state, rest)) if rest else ([*begun, state], None)
