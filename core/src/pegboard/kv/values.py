"""The values that pass between the scheduler and the KV manager."""

from __future__ import annotations

import msgspec

from pegboard.kv.blocks import Block
from pegboard.kv.hashing import MediaSpan

__all__ = ["Allocation", "Beginning", "Fork", "Hit", "KVRequest", "Source"]


class KVRequest(msgspec.Struct, eq=False):
    """What the books know of one request: ids (shared with the scheduler), hashes, blocks."""

    prompt_ids: list[int]
    output_ids: list[int]
    root: bytes
    adapter: str | None
    salt: str | None
    media: list[MediaSpan]
    tables: list[list[Block]]
    """Per group, the blocks held, in order; the null block where nothing is kept (any more)."""
    released: list[int]
    """Per group, leading entries of the table that were given up already."""
    forget_at: int = 0
    """Computed tokens from which on another entry can be given up."""
    encoder_tokens: int = 0
    hashes: list[bytes] = msgspec.field(default_factory=list)
    """Of the leading hash units, as many as were needed so far."""
    committed: int = 0
    """Leading hash units that were offered for sharing already."""
    capacity: int = 0
    """Tokens that the tables have room for."""
    snapshot_at: int = -1
    """Tokens that `snapshots` stand for."""
    snapshots: dict[int, Block] = msgspec.field(default_factory=dict)
    """By group, referenced blocks with the recurrent state after `snapshot_at` tokens."""

    def ids(self, start: int, stop: int) -> list[int]:
        """Token ids of the range ``start:stop`` of prompt and output."""
        border = len(self.prompt_ids)
        if stop <= border:
            return self.prompt_ids[start:stop]
        if start >= border:
            return self.output_ids[start - border : stop - border]
        return self.prompt_ids[start:] + self.output_ids[: stop - border]

    def block_ids(self) -> list[list[int]]:
        """Ids of the blocks held, per group."""
        return [[block.id for block in table] for table in self.tables]


class Source(msgspec.Struct):
    """A block that is copied into the first block that a request takes in a group."""

    group: int
    block: Block
    tokens: int
    """Leading tokens to copy."""


class Beginning(msgspec.Struct, eq=False):
    """What a request can start from instead of computing it."""

    tokens: int
    blocks: list[list[Block]]
    """Per group, what the block table begins with; the null block where nothing is needed."""
    sources: list[Source]
    """At most one per group, where the beginning ends inside a block."""


class Hit(Beginning, eq=False):
    """A cached beginning of a request; no references are held."""


class Fork(Beginning, eq=False):
    """References on a computed prompt for a child that waits."""


class Allocation(msgspec.Struct):
    """Room wanted for tokens ``start`` to ``start + count`` (and `lookahead` more for drafts)."""

    request: KVRequest
    start: int
    count: int
    lookahead: int = 0
    given: Beginning | None = None
    """What the (empty) tables begin with: a hit is referenced now, a fork's references move in."""
    reserve: int = 0
    """Blocks that must remain available afterwards."""
