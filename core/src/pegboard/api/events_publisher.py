"""An open publisher, and what it is opened with. Part of `pegboard.api.events`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import msgspec

from pegboard.api.metrics import PluginMetrics

if TYPE_CHECKING:
    from pegboard.api.events_blocks import KVEventBatch


__all__ = ["Publisher", "PublisherSettings", "PublisherStats"]


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
