"""How each kind of KV group uses blocks.

A kind is a class; the manager asks it and knows no kind itself. Four things differ:

* which entries of the block table a request needs when its first t tokens are computed: all (full,
  latent, cross), those of a window (sliding, chunked), the one with the last state (recurrent);
* which cached beginnings it can resume from (`longest`, `begin`);
* what is worth keeping (`commit`);
* where a chunk must end so that something is kept (`StatePolicy.cut`).

Hash units are the steps in which content is named: one or several per block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pegboard.kv.blocks import Block, BlockKey, BlockPool
from pegboard.kv.values import KVRequest, Source

__all__ = ["UNBOUNDED", "Finder", "GroupPolicy", "Part"]

UNBOUNDED = 1 << 62
"""A capacity that no request reaches."""


class Finder(Protocol):
    """Says whether there is content for a key: the pool, or a store outside."""

    def find(self, key: BlockKey) -> object | None: ...


Part = tuple[list[Block], Source | None]
"""One group's share of a beginning."""


class GroupPolicy(Protocol):
    """The rules of one group. Entries are those of its block tables."""

    index: int
    block_size: int
    cacheable: bool
    """Requests of a model with this group may begin with cached blocks."""
    forgets: bool
    """Leading entries are given up as a request goes on."""

    def entries(self, tokens: int, encoder_tokens: int) -> int:
        """Entries that a block table needs for `tokens` tokens."""
        ...

    def skipped(self, have: int, want: int) -> int:
        """Of the new entries ``have`` to ``want``, the leading ones that need no block."""
        ...

    def capacity(self, entries: int) -> int:
        """Tokens that so many entries have room for."""
        ...

    def first_entry(self, computed: int) -> int:
        """The first entry that matters after `computed` tokens."""
        ...

    def leaves_at(self, entry: int) -> int:
        """After how many computed tokens `entry` matters no more."""
        ...

    def longest(self, pool: Finder, hashes: Sequence[bytes], limit: int) -> int:
        """The longest beginning of at most `limit` hash units that can be resumed, in units."""
        ...

    def begin(self, pool: BlockPool, hashes: Sequence[bytes], units: int) -> Part:
        """The blocks of a beginning that `longest` found."""
        ...

    def commit(self, pool: BlockPool, request: KVRequest, units: int, computed: int) -> None:
        """File what was computed since ``request.committed`` units; `units` are whole now."""
        ...

    def completed(self, before: int, computed: int) -> range:
        """Entries whose content became whole, and stays, when a step took the computed tokens from
        `before` to `computed`."""
        ...

    def file(self, pool: BlockPool, block: Block, hashes: Sequence[bytes], entry: int) -> None:
        """File one whole block that was not computed here: entry `entry` of a block table."""
        ...

    def fork(
        self, pool: BlockPool, table: Sequence[Block], tokens: int, snapshots: Mapping[int, Block]
    ) -> Part | None:
        """What a child shares of `tokens` computed tokens; None if it is no longer there."""
        ...
