"""Conformance kit for the surface *events*: publishers of what becomes of the prefix cache.

A test file of a publisher subclasses `EventsKit`, names the descriptor, and gives options::

    class TestMyPublisher(EventsKit):
        publisher = MY_PUBLISHER
        refused = ({"path": 3}, {"colour": "red"})

        @pytest.fixture
        def options(self, tmp_path):
            return {"path": str(tmp_path / "events")}

Whether what is sent arrives is the plugin's own to test.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pegboard import LLM, SamplingParams
from pegboard.api.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventPublisher,
    KVEventBatch,
    Publisher,
    PublisherSettings,
)
from pegboard.errors import ConfigError
from pegboard.testing.boards import board_with
from pegboard.testing.checkpoints import write_tiny_model
from pegboard_testkit.own_settings import OwnSettings

__all__ = ["EventsKit"]

BATCHES = 200


def _batch(number: int) -> KVEventBatch:
    """A block of eight tokens comes, and the one before it goes."""
    key, before = number.to_bytes(32, "big"), (number - 1).to_bytes(32, "big", signed=True)
    stored = BlockStored([key], None, [*range(8)], 8, 0, "full")
    return KVEventBatch(time.time(), [stored, BlockRemoved([before], 0)])


class EventsKit(OwnSettings):
    """Tests of a publisher; subclass it in a test file under a name that begins with ``Test``."""

    publisher: EventPublisher
    """The descriptor."""
    refused: Sequence[Mapping[str, Any]] = ()
    """Options with which it must not open."""
    step_seconds = 0.05
    """What `publish` may take at the median: it is called between two steps."""
    close_seconds = 5.0
    """What `close` may take."""

    @pytest.fixture
    def options(self) -> Mapping[str, Any]:
        """With which it opens; none unless this is given."""
        return {}

    def test_options_that_are_not_allowed_are_refused(self, options: Mapping[str, Any]) -> None:
        name = "no_option_is_called_so"
        for given in (*self.refused, {**options, name: 1}):
            with pytest.raises(ConfigError):
                self._open(given).close()

    def test_every_batch_is_sent_dropped_or_waits(self, options: Mapping[str, Any]) -> None:
        publisher, took = self._open(options), []
        try:
            for number in range(1, BATCHES + 1):
                begin = time.perf_counter()
                publisher.publish(_batch(number))
                took.append(time.perf_counter() - begin)
            publisher.publish(KVEventBatch(time.time(), [AllBlocksCleared()]))
            stats = publisher.stats()
        finally:
            publisher.close()
        counted = stats.published + stats.dropped + stats.queued
        assert counted == BATCHES + 1, f"{BATCHES + 1} batches were given, {stats} counts {counted}"
        median = sorted(took)[len(took) // 2]
        assert median < self.step_seconds, f"publish takes {median:.3f} s: it blocks the engine"

    def test_it_closes_soon_and_a_second_time_does_nothing(
        self, options: Mapping[str, Any]
    ) -> None:
        publisher = self._open(options)
        publisher.publish(_batch(1))
        begin = time.perf_counter()
        publisher.close()
        publisher.close()
        took = time.perf_counter() - begin
        assert took < self.close_seconds, f"closing takes {took:.1f} s"

    def test_it_serves_an_engine_and_opens_again(
        self, options: Mapping[str, Any], tmp_path: Path
    ) -> None:
        wanted = {"enable_kv_cache_events": True, "publisher": self.publisher.name, **options}
        usual: Any = {"dtype": "float32", "max_model_len": 64, "block_size": 8}
        model = str(write_tiny_model(tmp_path / "model"))
        board = board_with("events", self.publisher, settings=self.settings)
        for _ in range(2):
            with LLM(model, board=board, platform="null", kv_events_config=wanted, **usual) as llm:
                params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
                llm.generate([*range(20)], params, use_tqdm=False)
                stats = llm.engine.kv_event_stats()
            assert stats.published + stats.queued and not stats.dropped, stats

    def _open(self, options: Mapping[str, Any]) -> Publisher:
        own = self.handed("events", self.publisher.name)
        opened: Publisher = self.publisher.open.load()(PublisherSettings(options, **own))
        return opened
