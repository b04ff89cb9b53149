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

from typing import TYPE_CHECKING

import attrs

from pegboard.api._parts import late_exports
from pegboard.api.descriptor import LazyRef, lazy_ref

if TYPE_CHECKING:
    from pegboard.api.events_blocks import (
        MEDIUM_DEVICE,
        AllBlocksCleared,
        BlockRemoved,
        BlockStored,
        ExtraKey,
        KVEvent,
        KVEventBatch,
    )
    from pegboard.api.events_publisher import Publisher, PublisherSettings, PublisherStats

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

if not TYPE_CHECKING:
    __getattr__ = late_exports(__name__, __all__, "events_blocks", "events_publisher")


@attrs.frozen
class EventPublisher:
    """Descriptor of a publisher. ``kv_events_config={"publisher": name}`` chooses it."""

    name: str
    open: LazyRef = attrs.field(converter=lazy_ref)
    """``open(PublisherSettings) -> Publisher``, called before the model is loaded. Raises
    `ConfigError` for options that are not allowed, an address that cannot be used included."""

    def claims(self) -> tuple[str, ...]:
        return ()
