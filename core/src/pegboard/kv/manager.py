"""The KV manager: which blocks each request holds, which are worth keeping, which can be shared.

Life of a request's blocks, in calls of the scheduler::

    open ─► match ─► allocate ─► (step runs) ─► commit ─► allocate ─► … ─► free
                        ▲                          │
                        └── adopts a fork ◄─ fork ─┘

`match` only looks; `allocate` takes references on what was found. `commit` is called in the update
of the step that filled blocks, never before: only then may others read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pegboard.api.kv import KVCacheConfig
from pegboard.api.scheduler import CacheStats
from pegboard.api.step import BlockCopy
from pegboard.api.views import EngineRequest
from pegboard.errors import UnsupportedError
from pegboard.kv.blocks import Block, BlockPool, PoolStats
from pegboard.kv.groups import blocks_for, longest_request
from pegboard.kv.hashing import BlockHasher
from pegboard.kv.policies import GroupPolicy, make_policy
from pegboard.kv.values import Allocation, Fork, Hit, KVRequest

__all__ = ["KVManager"]


class KVManager:
    """The books of one KV cache. Never touches tensors; one thread."""

    def __init__(self, cache: KVCacheConfig, *, caching: bool = True) -> None:
        if not cache.groups:
            raise UnsupportedError("the scheduler needs a model with at least one KV slot")
        sizes = {group.block_size for group in cache.groups}
        if len(sizes) != 1:
            raise UnsupportedError(
                f"KV groups have block sizes {sorted(sizes)}; they must have one"
            )
        self.groups = cache.groups
        self.block_size = sizes.pop()
        self.caching = caching
        self.pool = BlockPool(cache.num_blocks)
        self._policies: list[GroupPolicy] = [make_policy(group) for group in cache.groups]
        self._hasher = BlockHasher(self.block_size)
        self._stats = CacheStats()
        self._none: list[list[int]] = [[] for _ in cache.groups]

    def open(self, request: EngineRequest) -> KVRequest:
        """Start the books of a request; it holds nothing yet."""
        return KVRequest(
            prompt_ids=request.prompt_ids,
            output_ids=[],
            root=self._hasher.root(request.adapter, request.cache_salt),
            media=request.media,
            tables=[[] for _ in self.groups],
        )

    # Room

    def blocks_for(self, tokens: int) -> int:
        """Blocks that a request of `tokens` tokens holds, over all groups."""
        return blocks_for(self.groups, tokens)

    def longest_request(self) -> int:
        """Most tokens that one request alone can have computed."""
        return longest_request(self.groups, self.pool.total)

    def cut(self, start: int, count: int) -> int:
        """Shorten a chunk so that it ends where every group can resume."""
        for policy in self._policies:
            count = policy.cut(start, count)
        return count

    def match(self, request: KVRequest, limit: int) -> Hit:
        """The longest cached beginning of at most `limit` tokens, in whole blocks.

        Takes no references. `limit` is below the number of known tokens, so that at least one is
        computed: logits come from computing.
        """
        most = limit // self.block_size if self.caching else 0
        if most <= 0:
            return Hit(0, [[] for _ in self.groups])
        self._hash(request, most)
        while True:  # what one group lacks, the others cannot use: shrink until all agree
            found = [policy.find(self.pool, request.hashes, most) for policy in self._policies]
            shortest = min(len(blocks) for blocks in found)
            if all(len(blocks) == shortest for blocks in found):
                return Hit(shortest * self.block_size, found)
            most = shortest

    def allocate(self, want: Allocation) -> list[list[int]] | None:
        """Make room; ids of newly taken blocks per group (read only), None if there are too few.

        On None nothing has changed.
        """
        tokens = want.start + want.count + want.lookahead
        if tokens <= want.request.capacity:
            return self._none
        begin = want.request.tables if want.given is None else want.given.blocks
        lengths = [policy.table_length(tokens) for policy in self._policies]
        missing = sum(lengths) - sum(len(blocks) for blocks in begin)
        if missing + self._idle(want) + want.reserve > self.pool.available:
            return None
        if want.given is not None:
            self._begin(want.request, want.given)
        return self._extend(want.request, lengths)

    def _idle(self, want: Allocation) -> int:
        """Blocks of a hit that nobody holds: available now, no more once referenced."""
        if not isinstance(want.given, Hit):
            return 0
        return sum(block.refs == 0 for blocks in want.given.blocks for block in blocks)

    def _begin(self, request: KVRequest, given: Hit | Fork) -> None:
        """Fill empty tables with a hit or fork."""
        assert not any(request.tables), "a hit or fork goes into empty tables"
        request.tables = given.blocks
        if isinstance(given, Hit):
            for blocks in given.blocks:
                self.pool.touch(blocks)
            request.committed = given.tokens // self.block_size

    def _extend(self, request: KVRequest, lengths: list[int]) -> list[list[int]]:
        """Take new blocks until the tables have these lengths."""
        new_ids = []
        for table, length in zip(request.tables, lengths, strict=True):
            new = self.pool.take(max(length - len(table), 0))
            table.extend(new)
            new_ids.append([block.id for block in new])
        request.capacity = min(map(len, request.tables)) * self.block_size
        return new_ids

    def free(self, request: KVRequest) -> None:
        """Give up all blocks of a request; their content stays while nobody needs the room."""
        for group, table in enumerate(request.tables):
            self.pool.free(table)
            request.tables[group] = []
        request.committed = request.capacity = 0

    # Sharing

    def commit(self, request: KVRequest, computed: int) -> None:
        """Offer the full blocks of the first `computed` tokens; their steps are over."""
        full = computed // self.block_size
        if not self.caching or full <= request.committed:
            return
        self._hash(request, full)
        for group, table in enumerate(request.tables):
            for number in range(request.committed, full):
                if table[number].key is None and table[number] is not self.pool.null:
                    self.pool.file(table[number], (group, request.hashes[number]))
        request.committed = full

    def fork(self, parent: KVRequest, prompt: int) -> Fork:
        """Take references on a parent's first `prompt` tokens, all computed, for one child.

        The child computes only the last of them again, in a block of its own, for its own logits.
        """
        tokens = prompt - 1
        full, rest = divmod(tokens, self.block_size)
        blocks = [table[:full] for table in parent.tables]
        sources = [table[full] for table in parent.tables] if rest else []
        for shared in (*blocks, sources):
            self.pool.touch(shared)
        return Fork(tokens=tokens, blocks=blocks, sources=sources, copy_tokens=rest)

    def copies(self, fork: Fork, new: Sequence[Sequence[int]]) -> list[BlockCopy]:
        """Copies for a child's first step; `new` are the blocks it got. Sources stay referenced."""
        return [
            BlockCopy(group=group, source=block.id, target=new[group][0], tokens=fork.copy_tokens)
            for group, block in enumerate(fork.sources)
        ]

    def release_fork(self, fork: Fork) -> None:
        """Give up the references of a fork that no child adopted."""
        for shared in fork.blocks:
            self.pool.free(shared)
        self.release(fork.sources)

    def release(self, blocks: Sequence[Block]) -> None:
        """Give up one reference on each of these blocks."""
        self.pool.free(blocks)

    def evict(self, ids: Iterable[int]) -> int:
        """Forget the content of these blocks. Returns how many had any."""
        return self.pool.evict_blocks(ids)

    def reset(self) -> bool:
        """Forget all content and statistics; False, and nothing happens, while blocks are held."""
        if not self.pool.reset():
            return False
        self._stats = CacheStats()
        self.pool.evicted = 0
        return True

    def _hash(self, request: KVRequest, blocks: int) -> None:
        if len(request.hashes) < blocks:
            self._hasher.extend(request.hashes, blocks, request.root, request.ids, request.media)

    # Statistics and checks

    def count_query(self, queried: int, hit: int) -> None:
        """Count an admitted prompt that looked into the cache, in tokens."""
        self._stats.queried_tokens += queried
        self._stats.hit_tokens += hit

    def stats(self) -> CacheStats:
        """A copy of the counts since start or reset."""
        return CacheStats(self._stats.queried_tokens, self._stats.hit_tokens, self.pool.evicted)

    def usage(self) -> PoolStats:
        """Blocks by state."""
        return self.pool.stats()

    def check(
        self, requests: Iterable[KVRequest], forks: Iterable[Fork], loose: Iterable[Block]
    ) -> None:
        """Verify the pool, and that each reference has a request, fork or loose block."""
        self.pool.check()
        held = [0] * len(self.pool.blocks)
        held[0] = 1
        holders: list[Iterable[Block]] = [loose]
        for request in requests:
            holders += request.tables
            assert request.capacity == min(map(len, request.tables)) * self.block_size
        for fork in forks:
            holders += [*fork.blocks, fork.sources]
        for blocks in holders:
            for block in blocks:
                held[block.id] += block is not self.pool.null
        for block in self.pool.blocks:
            assert block.refs == held[block.id], f"{block} has {held[block.id]} holders"
