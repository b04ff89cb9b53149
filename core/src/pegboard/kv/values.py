"""The values that pass between the scheduler and the KV manager."""

from __future__ import annotations

import msgspec

from pegboard.kv.blocks import Block
from pegboard.kv.hashing import MediaSpan

__all__ = ["Allocation", "Fork", "Hit", "KVRequest"]


class KVRequest(msgspec.Struct, eq=False):
    """What the books know of one request: ids (shared with the scheduler), hashes, blocks."""

    prompt_ids: list[int]
    output_ids: list[int]
    root: bytes
    media: list[MediaSpan]
    tables: list[list[Block]]
    """Per group, the blocks held, in order."""
    hashes: list[bytes] = msgspec.field(default_factory=list)
    """Of the leading full blocks, as many as were needed so far."""
    committed: int = 0
    """Leading blocks that were offered for sharing already."""
    capacity: int = 0
    """Tokens that the tables have room for."""

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


class Hit(msgspec.Struct):
    """A cached beginning of a request; no references are held."""

    tokens: int
    blocks: list[list[Block]]
    """Per group."""


class Fork(msgspec.Struct, eq=False):
    """References on a computed prompt for a child that waits.

    The child starts with `tokens` tokens computed.
    """

    tokens: int
    blocks: list[list[Block]]
    """Per group, the full blocks that the child will share."""
    sources: list[Block]
    """Per group, the partly filled block to copy; empty if the last token begins a block."""
    copy_tokens: int
    """Leading tokens of `sources` to copy."""


class Allocation(msgspec.Struct):
    """Room wanted for tokens ``start`` to ``start + count`` (and `lookahead` more for drafts)."""

    request: KVRequest
    start: int
    count: int
    lookahead: int = 0
    given: Hit | Fork | None = None
    """What the (empty) tables begin with: a hit is referenced now, a fork's references move in."""
    reserve: int = 0
    """Blocks that must remain available afterwards."""
