"""From the scheduler's KV events to the publisher, one batch per step."""

from __future__ import annotations

import time
from typing import Protocol

from pegboard.api.events import (
    EventPublisher,
    KVEvent,
    KVEventBatch,
    Publisher,
    PublisherSettings,
    PublisherStats,
)
from pegboard.config.kv_events import KVEventsConfig
from pegboard.errors import SelectionError
from pegboard.logging import get_logger
from pegboard.plugins import Board

__all__ = ["EventSink", "EventSource", "NullSink", "PublisherSink", "choose_publisher", "open_sink"]


class EventSource(Protocol):
    """The part of a scheduler that makes events."""

    def take_events(self) -> list[KVEvent]: ...


class EventSink(Protocol):
    """Where events go."""

    def publish(self, source: EventSource) -> None:
        """Take what `source` has and send it."""
        ...

    def stats(self) -> PublisherStats: ...

    def close(self) -> None: ...


class NullSink:
    """Nobody listens, and no events are made."""

    def publish(self, source: EventSource) -> None:
        return

    def stats(self) -> PublisherStats:
        return PublisherStats()

    def close(self) -> None:
        return


class PublisherSink:
    """Hands batches to a publisher. Its faults are logged and counted; the engine goes on."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._failures = 0
        self._log = get_logger("pegboard.engine")

    def publish(self, source: EventSource) -> None:
        events = source.take_events()
        if not events:
            return
        try:
            self._publisher.publish(KVEventBatch(time.time(), events))
        except Exception as error:
            if not self._failures:
                self._log.error("the KV event publisher failed", error=repr(error))
            self._failures += 1

    def stats(self) -> PublisherStats:
        stats = self._publisher.stats()
        stats.dropped += self._failures
        return stats

    def close(self) -> None:
        try:
            self._publisher.close()
        except Exception as error:
            self._log.error("the KV event publisher failed to close", error=repr(error))


def open_sink(board: Board, config: KVEventsConfig | None) -> EventSink:
    """The publisher that the configuration asks for, opened.

    Raises `MissingPluginError` if it is not on the board, `SelectionError` if none is named and
    there are several, `ConfigError` if its options are not allowed.
    """
    if config is None or not config.active:
        return NullSink()
    descriptor = choose_publisher(board, config)
    publisher = descriptor.open.load()(
        PublisherSettings(options=config.options, **board.handed("events", descriptor.name))
    )
    return PublisherSink(publisher)


def choose_publisher(board: Board, config: KVEventsConfig) -> EventPublisher:
    """The one that is named, else the only one there is; raises as `open_sink`."""
    name = config.publisher
    if name is not None:
        found: EventPublisher = board.require(
            "events", name, wanted_by="kv_events_config.publisher"
        )
        return found
    registry = board.require_any("events", wanted_by="kv_events_config")
    if len(registry) > 1:
        raise SelectionError(
            "several KV event publishers are loaded; name one as publisher in kv_events_config: "
            + ", ".join(registry.names())
        )
    only: EventPublisher = next(iter(registry))
    return only
