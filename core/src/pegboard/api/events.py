"""Surface *events*: who is told which blocks the prefix cache holds.

An outside router or index follows a cache through its events::

    BlockStored       these hashes can be hit in this group from now on
    BlockRemoved      these cannot be hit any more
    AllBlocksCleared  nothing can be hit any more

The events speak of *content*, not of blocks: a hash is told as stored when the first block with its
content is filed, and as removed when the last one is gone. So a follower that starts with an empty
set, adds the pairs (group, hash) that are stored and drops those that are removed has exactly the
set of what is cached, and never adds what it has or drops what it has not. Content is filed in the
update of the step that computed it, or that reported it loaded by a KV connector, and lost when its
last block is given to another request, evicted or cleared.

Called by: `EngineCore`, in the engine process, from its one thread: `publish` after each step that
changed the cache, and after a reset. No publisher, or one called ``null``, costs nothing: then no
events are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import attrs
import msgspec

from pegboard.api.descriptor import LazyRef, lazy_ref
from pegboard.api.metrics import PluginMetrics

__all__ = [
    "MEDIUM_DEVICE",
    "AllBlocksCleared",
    "BlockRemoved",
    "BlockStored",
    "EventPublisher",
    "ExtraKey",
    "KVEvent",
    "KVEventBatch",
    "Publisher",
    "PublisherSettings",
    "PublisherStats",
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


class PublisherStats(msgspec.Struct):
    """Counts of batches since the publisher was opened."""

    published: int = 0
    dropped: int = 0
    """Given up because the publisher could not keep up, or failed."""
    queued: int = 0
    """Not yet sent."""


@attrs.frozen
class PublisherSettings:
    """What a publisher is opened with."""

    options: Mapping[str, Any] = attrs.field(factory=dict)
    """Those of ``kv_events_config`` that are the publisher's own. A publisher refuses unknown names
    and bad values with `ConfigError`."""
    rank: int = 0
    """Number of this engine among those that share one configuration; each publishes for itself."""
    settings: Any = None
    """The plugin's own, see `pegboard.api.hooks.Hooks.pegboard_settings`."""
    metrics: PluginMetrics = attrs.field(factory=PluginMetrics, eq=False, repr=False)
    """The plugin's own namespace of metrics."""


class Publisher(Protocol):
    """An open publisher. Lives as long as its engine."""

    def publish(self, batch: KVEventBatch) -> None:
        """Take a batch; must not block: what cannot be kept is dropped and counted.

        An exception is logged and counted; the engine goes on.
        """
        ...

    def stats(self) -> PublisherStats: ...

    def close(self) -> None:
        """Send what is queued, within a second or two, and release everything.

        A second call does nothing.
        """
        ...


@attrs.frozen
class EventPublisher:
    """Descriptor of a publisher. ``kv_events_config={"publisher": name}`` chooses it."""

    name: str
    open: LazyRef = attrs.field(converter=lazy_ref)
    """``open(PublisherSettings) -> Publisher``, called before the model is loaded. Raises
    `ConfigError` for options that are not allowed, an address that cannot be used included."""

    def claims(self) -> tuple[str, ...]:
        return ()
