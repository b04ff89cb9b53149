"""The KV manager: which blocks each request holds, which are worth keeping, which can be shared.

Life of a request's blocks, in calls of the scheduler::

    open ─► match ─► allocate ─► (step runs) ─► commit ─► forget ─► allocate ─► … ─► free
                        ▲                          │
                        └── adopts a fork ◄─ fork ─┘

`match` only looks; `allocate` takes references on what was found. `commit` is called in the update
of the step that filled blocks, never before: only then may others read them. `forget` comes after
it, and after forks: it gives up what left a window. Where there is recurrent state, `snapshot`
keeps what a fork will start from before the parent's next step overwrites it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd

import msgspec

from pegboard.api.events import KVEvent
from pegboard.api.kv import CrossAttentionSpec, KVCacheConfig
from pegboard.api.scheduler import CacheStats
from pegboard.api.step import BlockCopy
from pegboard.api.views import EngineRequest
from pegboard.errors import UnsupportedError
from pegboard.kv.audit import check_holders
from pegboard.kv.blocks import Block, BlockPool, PoolStats
from pegboard.kv.coordinator import common_beginning, parts_to_lists
from pegboard.kv.events import CacheLog, EventLog, NullLog
from pegboard.kv.groups import blocks_for, longest_request
from pegboard.kv.hashing import BlockHasher
from pegboard.kv.outside import OutsideBlocks
from pegboard.kv.paged import PagedPolicy
from pegboard.kv.policies import make_policy
from pegboard.kv.policy import UNBOUNDED, GroupPolicy
from pegboard.kv.states import StatePolicy
from pegboard.kv.values import Allocation, Beginning, Fork, Hit, KVRequest

__all__ = ["KVManager"]


class KVManager:
    """The books of one KV cache. Never touches tensors; one thread."""

    def __init__(
        self,
        cache: KVCacheConfig,
        *,
        caching: bool = True,
        budget: int | None = None,
        events: bool = False,
    ) -> None:
        """`budget` is the most tokens of one step; without it a step may be as long as a request.
        `events`: keep them for `take_events`."""
        if not cache.groups:
            raise UnsupportedError("the scheduler needs a model with at least one KV slot")
        self.groups = cache.groups
        self.prefix_match_unit = gcd(*(group.block_size for group in cache.groups))
        """Tokens per hash; prefix hits are multiples of it."""
        self._log: CacheLog = NullLog()
        if events:
            self._log = EventLog(cache.groups, self.prefix_match_unit)
        self.pool = BlockPool(cache.num_blocks, self._log)
        self._budget = budget
        self._policies: list[GroupPolicy] = [
            make_policy(group, self.prefix_match_unit) for group in cache.groups
        ]
        # A group that needs every block of a beginning, if there is one.
        self._whole = next((p for p in self._policies if type(p) is PagedPolicy), None)
        self._states = [p for p in self._policies if isinstance(p, StatePolicy)]
        self.caching = caching and all(policy.cacheable for policy in self._policies)
        self._forgetful = [policy for policy in self._policies if policy.forgets]
        self.forgets = bool(self._forgetful)
        """Blocks become free while a request goes on."""
        self.keeps_state = bool(self._states)
        """A fork needs a snapshot; see `snapshot`."""
        self.encoder_limit = min(
            (g.spec.max_tokens for g in cache.groups if isinstance(g.spec, CrossAttentionSpec)),
            default=0,
        )
        """Most encoder tokens of a request."""
        self._hasher = BlockHasher(self.prefix_match_unit)
        unit = self.prefix_match_unit
        self.outside = OutsideBlocks(
            self.pool, cache.groups, self._policies, unit, self._hash, self._log
        )
        """The books of what comes from outside and goes there."""
        self._stats = CacheStats()
        self.no_blocks: list[list[int]] = [[] for _ in cache.groups]
        """What `allocate` gives where there is room already; read only."""

    def open(self, request: EngineRequest) -> KVRequest:
        """Start the books of a request; it holds nothing yet."""
        return KVRequest(
            prompt_ids=request.prompt_ids,
            output_ids=[],
            root=self._hasher.root(request.adapter, request.cache_salt),
            adapter=request.adapter,
            salt=request.cache_salt,
            media=request.media,
            tables=[[] for _ in self.groups],
            released=[0] * len(self.groups),
            encoder_tokens=request.encoder_tokens,
        )

    # Room

    def blocks_for(self, tokens: int) -> int:
        """Blocks that a request of `tokens` tokens holds at most, over all groups."""
        return blocks_for(self.groups, tokens, self._budget)

    def longest_request(self) -> int:
        """Most tokens that one request alone can have computed."""
        return longest_request(self.groups, self.pool.total, self._budget)

    def cut(self, start: int, count: int) -> int:
        """Shorten a chunk so that it ends where every group can resume."""
        for policy in self._states:
            count = policy.cut(start, count)
        return count

    def nothing(self) -> Hit:
        """The beginning of a request that starts from scratch."""
        return Hit(0, [[] for _ in self.groups], [])

    def hash_units(self, request: KVRequest, limit: int) -> int:
        """Hash the units of the first `limit` tokens; how many there are, 0 without caching."""
        most = max(limit, 0) // self.prefix_match_unit if self.caching else 0
        self._hash(request, most)
        return most

    def cached_units(self, request: KVRequest, limit: int, known: int = 0) -> int:
        """Length of what `match` would find, in hash units.

        So many leading units are `known` to be found, as they were for a request that begins
        alike; with them a long beginning is not searched again.
        """
        most = self.hash_units(request, limit)
        whole, tokens = self._whole, known * self.prefix_match_unit
        if known and whole is not None and tokens % whole.block_size == 0:
            rest = request.hashes[known:most]
            if whole.longest(self.pool, rest, len(rest)) == 0:
                return known
        return common_beginning(self._policies, self.pool, request.hashes, most)

    def match(self, request: KVRequest, limit: int) -> Hit:
        """The longest cached beginning of at most `limit` tokens, in whole hash units.

        Takes no references. `limit` is below the number of known tokens, so that at least one is
        computed: logits come from computing.
        """
        units = self.cached_units(request, limit)
        if units == 0:
            return self.nothing()
        parts = [policy.begin(self.pool, request.hashes, units) for policy in self._policies]
        return Hit(units * self.prefix_match_unit, *parts_to_lists(parts))

    def allocate(self, want: Allocation) -> list[list[int]] | None:
        """Make room; ids of new table entries per group (read only), None if there are too few
        blocks.

        An id of 0 stands for an entry that needs no block. On None nothing has changed.
        """
        request, tokens = want.request, want.start + want.count + want.lookahead
        if tokens <= request.capacity:
            return self.no_blocks
        begin = request.tables if want.given is None else want.given.blocks
        growth = self._growth(begin, tokens, request.encoder_tokens)
        missing = sum([new for _, new in growth])
        if missing + self._idle(want) + want.reserve > self.pool.available:
            return None
        if want.given is not None:
            self._begin(request, want.given)
        return self._extend(request, growth)

    def _growth(
        self, tables: list[list[Block]], tokens: int, encoder_tokens: int
    ) -> list[tuple[int, int]]:
        """Per group, entries that tables lack for `tokens` tokens: without a block, then with."""
        growth = []
        for policy, table in zip(self._policies, tables, strict=True):
            have, length = len(table), policy.entries(tokens, encoder_tokens)
            skipped = policy.skipped(have, length)
            growth.append((skipped, max(length - have, 0) - skipped))
        return growth

    def _idle(self, want: Allocation) -> int:
        """Blocks of a hit that nobody holds: available now, no more once referenced."""
        if not isinstance(want.given, Hit):
            return 0
        hit = {block.id: block for blocks in want.given.blocks for block in blocks}
        hit |= {source.block.id: source.block for source in want.given.sources}
        return sum(block.refs == 0 for block in hit.values())

    def _begin(self, request: KVRequest, given: Beginning) -> None:
        """Fill empty tables with a hit or fork."""
        assert not any(request.tables), "a hit or fork goes into empty tables"
        request.tables = given.blocks
        if isinstance(given, Hit):
            for blocks in given.blocks:
                self.pool.touch(blocks)
            self.pool.touch(source.block for source in given.sources)
            request.committed = given.tokens // self.prefix_match_unit

    def _extend(self, request: KVRequest, growth: list[tuple[int, int]]) -> list[list[int]]:
        """Add so many entries to the tables."""
        new_ids = []
        for table, (skipped, count) in zip(request.tables, growth, strict=True):
            new = self.pool.take(count)
            table.extend([self.pool.null] * skipped + new)
            new_ids.append([0] * skipped + [block.id for block in new])
        request.capacity = self._capacity(request)
        return new_ids

    def _capacity(self, request: KVRequest) -> int:
        """Tokens that every group has room for."""
        tables = zip(self._policies, request.tables, strict=True)
        return min([p.capacity(len(table)) for p, table in tables])

    def forget(self, request: KVRequest, computed: int) -> None:
        """Give up what no token after the first `computed` ones attends to.

        Their steps are over. Block tables keep their lengths; the null block takes the places, and
        the runner keeps the old ids, which it reads no more.
        """
        if not self._forgetful or computed < request.forget_at:
            return
        for policy in self._forgetful:
            table, start = request.tables[policy.index], request.released[policy.index]
            stop = policy.first_entry(computed)
            if stop > start:
                self.pool.free(table[start:stop])
                table[start:stop] = [self.pool.null] * (stop - start)
                request.released[policy.index] = stop
        request.forget_at = min(p.leaves_at(request.released[p.index]) for p in self._forgetful)

    def free(self, request: KVRequest) -> None:
        """Give up all blocks of a request; their content stays while nobody needs the room."""
        for group, table in enumerate(request.tables):
            self.pool.free(table)
            request.tables[group] = []
            request.released[group] = 0
        self.drop_snapshots(request)
        request.committed = request.capacity = request.forget_at = 0

    def being_written(self, request: KVRequest, computed: int) -> list[Block]:
        """Blocks that steps in flight write, if they go on after the first `computed` tokens."""
        tables = zip(self._policies, request.tables, strict=True)
        blocks = [block for p, table in tables for block in table[computed // p.block_size :]]
        return [*blocks, *request.snapshots.values()]

    def hold(self, blocks: Iterable[Block]) -> None:
        """Take one more reference on each of these blocks."""
        self.pool.touch(blocks)

    # Sharing

    def commit(self, request: KVRequest, computed: int) -> None:
        """Offer the full blocks of the first `computed` tokens; their steps are over."""
        units = computed // self.prefix_match_unit
        if not self.caching or units <= request.committed:
            return
        self._hash(request, units)
        for policy in self._policies:
            policy.commit(self.pool, request, units, computed)
        self._log.committed(request, request.committed, units)
        request.committed = units

    def quiet_until(self, request: KVRequest) -> int:
        """Computed tokens from which on `commit` or `forget` has something to do."""
        commit = (request.committed + 1) * self.prefix_match_unit if self.caching else UNBOUNDED
        return min(commit, request.forget_at) if self._forgetful else commit

    def snapshot(self, request: KVRequest, tokens: int) -> list[BlockCopy]:
        """Keep the recurrent state after `tokens` tokens, for forks.

        Called while the step that begins there is planned, whose end overwrites the state; the
        copies come before its forward pass. Without room for them nothing is kept, and there will
        be no fork.
        """
        copied = [p for p in self._states if tokens % p.block_size] if tokens else []
        if len(copied) > self.pool.available:
            return []
        copies = []
        for policy in self._states if tokens else []:
            state = request.tables[policy.index][policy.entry(tokens)]
            rest = tokens % policy.block_size
            if rest:
                (kept,) = self.pool.take(1)
                copies.append(BlockCopy(policy.index, state.id, kept.id, rest))
            else:  # the step writes another entry, so that this one is a snapshot already
                kept = state
                self.pool.touch([kept])
            request.snapshots[policy.index] = kept
        request.snapshot_at = tokens
        return copies

    def drop_snapshots(self, request: KVRequest) -> None:
        """Give up what `snapshot` kept."""
        if request.snapshot_at < 0:
            return
        self.pool.free(list(request.snapshots.values()))
        request.snapshots.clear()
        request.snapshot_at = -1

    def fork(self, parent: KVRequest, prompt: int) -> Fork | None:
        """Take references on a parent's first `prompt` tokens, all computed, for one child.

        The child computes only the last of them again, in a block of its own, for its own logits.
        None if the parent has given up what the child would read.
        """
        tokens = prompt - 1
        snapshots = parent.snapshots if parent.snapshot_at == tokens else {}
        parts = []
        for policy, table in zip(self._policies, parent.tables, strict=True):
            part = policy.fork(self.pool, table, tokens, snapshots)
            if part is None:
                return None
            parts.append(part)
        fork = Fork(tokens, *parts_to_lists(parts))
        for shared in fork.blocks:
            self.pool.touch(shared)
        self.pool.touch(source.block for source in fork.sources)
        return fork

    def copies(self, given: Beginning, new: Sequence[Sequence[int]]) -> list[BlockCopy]:
        """Copies for a request's first step; `new` are the blocks it got. Sources stay
        referenced."""
        return [
            BlockCopy(source.group, source.block.id, new[source.group][0], source.tokens)
            for source in given.sources
        ]

    def release_fork(self, fork: Fork) -> None:
        """Give up the references of a fork that no child adopted."""
        for shared in fork.blocks:
            self.pool.free(shared)
        self.release(source.block for source in fork.sources)

    def release(self, blocks: Iterable[Block]) -> None:
        """Give up one reference on each of these blocks."""
        self.pool.free(list(blocks))

    def evict(self, ids: Iterable[int]) -> int:
        """Forget the content of these blocks. Returns how many had any."""
        return self.pool.evict_blocks(ids)

    def reset(self) -> bool:
        """Forget all content and statistics; False, and nothing happens, while blocks are held."""
        if not self.pool.reset():
            return False
        self._stats = CacheStats(resets=self._stats.resets + 1)
        self.pool.evicted = 0
        return True

    def _hash(self, request: KVRequest, units: int) -> None:
        if len(request.hashes) < units:
            self._hasher.extend(request.hashes, units, request.root, request.ids, request.media)

    def take_events(self) -> list[KVEvent]:
        """What became of the content since the last call, in order."""
        return self._log.take()

    # Statistics and checks

    def count_query(self, queried: int, hit: int) -> None:
        """Count an admitted prompt that looked into the cache, in tokens."""
        self._stats.queried_tokens += queried
        self._stats.hit_tokens += hit

    def count_external(self, queried: int, hit: int) -> None:
        """Count tokens that a connector was asked for, and those that it loaded."""
        self._stats.external_queried_tokens += queried
        self._stats.external_hit_tokens += hit

    def stats(self) -> CacheStats:
        """A copy of the counts since start or reset."""
        return msgspec.structs.replace(self._stats, evicted_blocks=self.pool.evicted)

    def usage(self) -> PoolStats:
        """Blocks by state."""
        return self.pool.stats()

    def check(
        self, requests: Iterable[KVRequest], forks: Iterable[Fork], loose: Iterable[Block]
    ) -> None:
        """Verify the pool, and that each reference has a request, fork or loose block."""
        requests = list(requests)
        for request in requests:
            assert request.capacity in (0, self._capacity(request)), "a capacity is off"
        check_holders(self.pool, requests, forks, loose)
