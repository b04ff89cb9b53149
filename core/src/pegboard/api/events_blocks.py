"""What becomes of the blocks of the prefix cache. Part of `pegboard.api.events`."""

from __future__ import annotations

import msgspec

__all__ = [
    "MEDIUM_DEVICE",
    "AllBlocksCleared",
    "BlockRemoved",
    "BlockStored",
    "ExtraKey",
    "KVEvent",
    "KVEventBatch",
]

MEDIUM_DEVICE = "GPU"
"""Where the engine's own cache lies, in the field's word, whatever the device is."""

ExtraKey = str | tuple[bytes, int]
"""What a hash covers beside tokens: the adapter; a media item's digest with its offset from the
block's first token; the salt."""


class BlockStored(msgspec.Struct, frozen=True):
    """A run of hashes of one sequence that can be hit from now on.

    Each hash covers `block_size` tokens and, through the hash before it, all earlier ones.
    """

    block_hashes: list[bytes]
    """In the order of the sequence, 32 bytes each."""
    parent_hash: bytes | None
    """Hash before the first one; None at the beginning of a sequence. It need not be cached."""
    token_ids: list[int]
    """``len(block_hashes) * block_size`` of them."""
    block_size: int
    """Tokens per hash: the cache's hash unit, for recurrent state its group's block size."""
    group: int
    """Index of the KV group."""
    kind: str
    """Of the group, see `pegboard.api.kv_specs`."""
    window: int | None = None
    """Tokens of the group's sliding window."""
    adapter: str | None = None
    extra_keys: list[tuple[ExtraKey, ...] | None] = msgspec.field(default_factory=list)
    """One entry per hash: the adapter, media items, then the salt, which only the first hash of a
    sequence names. None without any of them."""
    medium: str = MEDIUM_DEVICE


class BlockRemoved(msgspec.Struct, frozen=True):
    """Hashes of one group that cannot be hit any more."""

    block_hashes: list[bytes]
    group: int
    medium: str = MEDIUM_DEVICE


class AllBlocksCleared(msgspec.Struct, frozen=True):
    """The cache was reset."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KVEventBatch(msgspec.Struct, frozen=True):
    """The events of one step, in order. Never empty."""

    timestamp: float
    """Seconds since the epoch."""
    events: list[KVEvent]
