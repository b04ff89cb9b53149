"""The block pool: which blocks of the KV cache are free, held, or kept for their content.

A block is in one of three states:

* *used*: at least one holder counts a reference on it;
* *cached*: nobody holds it, but its content is filed under a key and may be used again;
* *free*: nobody holds it and its content is worthless.

Cached and free blocks stand in one list, in the order in which they will be taken::

    head                                                                   tail
    free, last freed first | cached, least recently used first; a sequence's last block first

Block 0 is the null block: a placeholder in block tables, never taken, never freed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from pegboard.kv.events import CacheLog, NullLog

__all__ = ["Block", "BlockKey", "BlockPool", "PoolStats"]

BlockKey = tuple[int, bytes]
"""``(group index, chained hash)``: what content is filed under.

The hash covers everything up to some border inside or at the end of the block, so a block of
several hash units has several keys; the one of its last unit stands for the whole block.
"""


class Block:
    """One block. Everything but `id` belongs to the pool."""

    __slots__ = ("after", "before", "id", "keys", "refs")

    def __init__(self, number: int) -> None:
        self.id = number
        self.refs = 0
        self.keys: tuple[BlockKey, ...] = ()
        self.before: Block = self
        self.after: Block = self

    def __repr__(self) -> str:
        return f"Block({self.id}, refs={self.refs}, cached={bool(self.keys)})"


class FreeList:
    """A doubly linked list threaded through the blocks: any block leaves it in constant time."""

    __slots__ = ("_end", "_size")

    def __init__(self) -> None:
        self._end = Block(-1)  # closes the ring: its `after` is the head, its `before` the tail
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Block]:
        block = self._end.after
        while block is not self._end:
            yield block
            block = block.after

    def _insert(self, block: Block, before: Block) -> None:
        after = before.after
        block.before, block.after = before, after
        before.after = after.before = block
        self._size += 1

    def push_head(self, block: Block) -> None:
        self._insert(block, self._end)

    def push_tail(self, block: Block) -> None:
        self._insert(block, self._end.before)

    def remove(self, block: Block) -> None:
        block.before.after = block.after
        block.after.before = block.before
        block.before = block.after = block
        self._size -= 1

    def pop_head(self) -> Block:
        block = self._end.after
        assert block is not self._end, "the free list is empty"
        self.remove(block)
        return block


class PoolStats(msgspec.Struct, frozen=True):
    """Blocks by state, the null block left out: ``used + cached + free == total``."""

    total: int
    used: int
    cached: int
    """Held by nobody, content kept."""
    free: int
    evicted: int
    """Blocks that lost their content to a new holder since the start."""


class BlockPool:
    """All blocks of one cache, ids 0 to `num_blocks` - 1."""

    def __init__(self, num_blocks: int, log: CacheLog | None = None) -> None:
        assert num_blocks >= 1, "a pool has at least the null block"
        self._log = log or NullLog()
        self.blocks = [Block(index) for index in range(num_blocks)]
        self.null = self.blocks[0]
        self.null.refs = 1
        self.evicted = 0
        self._list = FreeList()
        self._filed: dict[BlockKey, Block] = {}
        """The block that is found, the first that was filed."""
        self._twins: dict[BlockKey, list[Block]] = {}
        """Further blocks with the same content, oldest first; there are few."""
        for block in self.blocks[1:]:
            self._list.push_tail(block)

    @property
    def total(self) -> int:
        """Blocks that can be taken at all."""
        return len(self.blocks) - 1

    @property
    def available(self) -> int:
        """Blocks that can be taken now, cached ones included."""
        return len(self._list)

    def take(self, count: int) -> list[Block]:
        """Take `count` blocks, one reference each; `available` must be at least `count`.

        A cached block among them loses its content.
        """
        assert count <= self.available, f"{count} blocks wanted, {self.available} available"
        taken = [self._list.pop_head() for _ in range(count)]
        for block in taken:
            block.refs = 1
            if block.keys:
                self._unfile(block)
                self.evicted += 1
        return taken

    def touch(self, blocks: Iterable[Block]) -> None:
        """Add one reference to each block."""
        null = self.null
        for block in blocks:
            if block is null:
                continue
            if block.refs == 0:
                self._list.remove(block)
            block.refs += 1

    def free(self, blocks: Sequence[Block]) -> None:
        """Drop one reference of each block; `blocks` are in the order of their sequence.

        Blocks that nobody holds any more go back to the list: those with content to its tail, the
        sequence's last block first, so that a shared beginning outlives its continuations; the
        others to its head.
        """
        null = self.null
        for block in reversed(blocks):
            if block is null:
                continue
            assert block.refs > 0, f"block {block.id} was freed more often than it was taken"
            block.refs -= 1
            if block.refs == 0:
                self._enlist(block)

    def file(self, block: Block, key: BlockKey) -> None:
        """File the content of a held block under one more `key`.

        What the key stands for must not change any more. Several blocks may have one key.
        """
        assert block.refs > 0 and key not in block.keys, f"{block} cannot be filed"
        block.keys += (key,)
        if key in self._filed:
            self._twins.setdefault(key, []).append(block)
        else:
            self._filed[key] = block
            self._log.filed(key)

    def find(self, key: BlockKey) -> Block | None:
        """A block with the content of `key`; to be touched before anything is taken."""
        return self._filed.get(key)

    def evict_blocks(self, ids: Iterable[int]) -> int:
        """Forget the content of these blocks, held or not. Returns how many had any."""
        forgotten = 0
        for index in ids:
            if not 0 <= index < len(self.blocks) or not self.blocks[index].keys:
                continue
            block = self.blocks[index]
            self._unfile(block)
            forgotten += 1
            if block.refs == 0:
                self._list.remove(block)
                self._list.push_head(block)
        return forgotten

    def reset(self) -> bool:
        """Forget all content. False, and nothing happens, while a block is held."""
        if self.available != self.total:
            return False
        for block in self.blocks:
            block.keys = ()
        self._filed.clear()
        self._twins.clear()
        self._log.cleared()
        return True

    def keys(self) -> set[BlockKey]:
        """Everything that content is filed under."""
        return set(self._filed)

    def stats(self) -> PoolStats:
        cached = sum(block.refs == 0 for block in self.blocks if block.keys)
        return PoolStats(
            total=self.total,
            used=self.total - self.available,
            cached=cached,
            free=self.available - cached,
            evicted=self.evicted,
        )

    def check(self) -> None:
        """Verify list, references and files; `AssertionError` names the block that is off."""
        listed = list(self._list)
        assert len(listed) == len(self._list), "the free list's length is off"
        assert len({block.id for block in listed}) == len(listed), "a block is listed twice"
        inside = {block.id for block in listed}
        assert self.null.refs == 1 and not self.null.keys and 0 not in inside, "null block is used"
        for block in self.blocks[1:]:
            idle = block.refs == 0
            assert idle == (block.id in inside), f"{block} is {'not ' if idle else ''}listed"
        self._check_files()

    def _check_files(self) -> None:
        filed = 0
        assert self._twins.keys() <= self._filed.keys(), "a twin is filed, the first block is not"
        for key, first in self._filed.items():
            twins = self._twins.get(key)
            assert twins != [], f"an empty list of twins is kept for {key}"
            blocks = [first, *(twins or ())]
            for block in blocks:
                assert key in block.keys, f"{block} is filed under a key that is not its own"
            filed += len(blocks)
        keyed = sum(len(block.keys) for block in self.blocks)
        assert keyed == filed, f"blocks have {keyed} keys, {filed} are filed"

    def _enlist(self, block: Block) -> None:
        if block.keys:
            self._list.push_tail(block)
        else:
            self._list.push_head(block)

    def _unfile(self, block: Block) -> None:
        for key in block.keys:
            twins = self._twins.get(key)
            if twins is None:
                del self._filed[key]
                self._log.removed(key)
                continue
            if self._filed[key] is block:
                self._filed[key] = twins.pop(0)
            else:
                twins.remove(block)
            if not twins:
                del self._twins[key]
        block.keys = ()
