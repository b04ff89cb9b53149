"""Blocks whose content comes from outside the engine, or goes there.

A beginning that comes from outside ends at a *border*, where every group has a whole block. Each
entry that its groups need is either a block of the own cache or a new one, to be loaded; so a
model's groups may have found different parts of it here already. The new blocks are filed for
others only once their content was reported good.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import lcm

from pegboard.api.connector import Piece
from pegboard.api.kv import KVGroup
from pegboard.kv.blocks import Block, BlockKey, BlockPool
from pegboard.kv.coordinator import common_beginning
from pegboard.kv.events import CacheLog
from pegboard.kv.policy import GroupPolicy
from pegboard.kv.values import Fork, KVRequest

__all__ = ["OutsideBlocks"]


class _Store:
    """A store that a connector describes, in the place of the pool where blocks are looked up."""

    def __init__(self, has: Callable[[int, bytes], bool]) -> None:
        self._has = has

    def find(self, key: BlockKey) -> object | None:
        return key if self._has(*key) else None


class OutsideBlocks:
    """Part of `KVManager`: its books for what comes from, and goes, outside."""

    def __init__(
        self,
        pool: BlockPool,
        groups: Sequence[KVGroup],
        policies: Sequence[GroupPolicy],
        unit: int,
        hash_units: Callable[[KVRequest, int], None],
        log: CacheLog,
    ) -> None:
        """`hash_units` makes sure that a request's leading units are hashed. `log` is the pool's:
        it is told whose content is filed."""
        self.possible = all(policy.cacheable for policy in policies)
        """Every group can begin with content that the request did not compute."""
        self.border = lcm(*(group.block_size for group in groups)) if self.possible else 0
        """Tokens."""
        self.unit = unit
        self._pool = pool
        self._policies = policies
        self._hash_units = hash_units
        self._log = log

    def hashes(self, request: KVRequest, tokens: int) -> list[bytes]:
        """Hashes of the whole units among the first `tokens` tokens, which must be known."""
        units = tokens // self.unit
        self._hash_units(request, units)
        return request.hashes[:units]

    def longest(
        self, hashes: Sequence[bytes], limit: int, has: Callable[[int, bytes], bool]
    ) -> int:
        """The longest beginning, at most `limit` tokens and up to a border, that a store with the
        blocks ``has(group, key)`` can bring, in tokens."""
        store, per = _Store(has), self.border // self.unit
        units = min(limit // self.unit, len(hashes)) // per * per
        while units > 0:
            found = common_beginning(self._policies, store, hashes, units)
            if found == units:
                break
            units = found // per * per
        return units * self.unit

    # Coming in

    def begin(
        self, request: KVRequest, tokens: int, reserve: int
    ) -> tuple[Fork, tuple[Piece, ...]] | None:
        """References on a beginning of `tokens` tokens (a border), and the blocks to be loaded.

        None, and nothing has changed, if that would leave fewer than `reserve` blocks.
        """
        self._hash_units(request, tokens // self.unit)
        wanted = [
            (policy, entry, self._key(policy, request.hashes, entry))
            for policy in self._policies
            for entry in self._entries(policy, tokens)
        ]
        found = [self._pool.find(key) for _, _, key in wanted]
        idle = len({block.id for block in found if block is not None and block.refs == 0})
        missing = sum(block is None for block in found)
        if missing + idle + reserve > self._pool.available:
            return None
        self._pool.touch(block for block in found if block is not None)
        new = iter(self._pool.take(missing))
        tables = [[self._pool.null] * self._entries(p, tokens).start for p in self._policies]
        pieces = []
        for (policy, entry, key), block in zip(wanted, found, strict=True):
            held = next(new) if block is None else block
            tables[policy.index].append(held)
            if block is None:
                pieces.append(Piece(policy.index, entry, held.id, key[1]))
        return Fork(tokens, tables, []), tuple(pieces)

    def keep(
        self, tables: Sequence[Sequence[Block]], tokens: int, failed: Collection[tuple[int, int]]
    ) -> Fork | None:
        """References of its own on the longest beginning, of at most `tokens` tokens, that needs
        none of the blocks `failed` (group, id). None if nothing is left."""
        for length in range(tokens, 0, -self.border):
            spans = [self._entries(policy, length) for policy in self._policies]
            needed = [
                tables[policy.index][span.start : span.stop]
                for policy, span in zip(self._policies, spans, strict=True)
            ]
            if any(
                block is self._pool.null or (group, block.id) in failed
                for group, blocks in enumerate(needed)
                for block in blocks
            ):
                continue
            for blocks in needed:
                self._pool.touch(blocks)
            nulls = [[self._pool.null] * span.start for span in spans]
            joined = [[*begun, *blocks] for begun, blocks in zip(nulls, needed, strict=True)]
            return Fork(length, joined, [])
        return None

    def file(
        self, request: KVRequest, pieces: Sequence[Piece], failed: Collection[tuple[int, int]]
    ) -> None:
        """Offer loaded blocks, all still held, for sharing; but not the `failed` ones."""
        for piece in pieces:
            if (piece.group, piece.block) not in failed:
                policy, block = self._policies[piece.group], self._pool.blocks[piece.block]
                policy.file(self._pool, block, request.hashes, piece.entry)
        self._log.committed(request, 0, len(request.hashes))

    # Going out

    def filled(self, request: KVRequest, before: int, computed: int) -> list[Piece]:
        """Blocks that became complete when the computed tokens grew from `before` to `computed`.

        To be called before the request forgets what left a window.
        """
        if computed // self.unit == before // self.unit:
            return []
        self._hash_units(request, computed // self.unit)
        return [
            Piece(policy.index, entry, block.id, self._key(policy, request.hashes, entry)[1])
            for policy in self._policies
            for entry in policy.completed(before, computed)
            for block in (request.tables[policy.index][entry],)
            if block is not self._pool.null
        ]

    def hold(self, ids: Sequence[int]) -> list[Block]:
        """Reference blocks by id; those that nobody holds, and the null block, are left out."""
        held = [self._pool.blocks[number] for number in ids if self.in_use(number)]
        self._pool.touch(held)
        return held

    def in_use(self, number: int) -> bool:
        """Somebody holds the block with this id."""
        blocks = self._pool.blocks
        return 0 < number < len(blocks) and blocks[number].refs > 0

    def _entries(self, policy: GroupPolicy, tokens: int) -> range:
        """Entries of whole blocks that a beginning of `tokens` tokens needs."""
        stop = tokens // policy.block_size
        return range(min(policy.first_entry(tokens), stop), stop)

    def _key(self, policy: GroupPolicy, hashes: Sequence[bytes], entry: int) -> BlockKey:
        return policy.index, hashes[(entry + 1) * (policy.block_size // self.unit) - 1]
