"""From steps to a publisher: one batch per step, and its faults are its own."""

from __future__ import annotations

import logging
import sys
import time
import types
from typing import Any

import pytest

from pegboard.api.events import (
    AllBlocksCleared,
    BlockStored,
    EventPublisher,
    KVEventBatch,
    PublisherSettings,
    PublisherStats,
)
from pegboard.config.kv_events import KVEventsConfig, parse_kv_events
from pegboard.engine.core import EngineCore
from pegboard.engine.events import NullSink, PublisherSink, open_sink
from pegboard.errors import MissingPluginError, SelectionError
from pegboard.plugins import load_plugins
from pegboard.testing.toy import ToyExecutor, toy_generate
from pegboard.testing.toy_engine import ToyEngine, toy_request

PLACE = "publishers_of_a_test"
ON = {"enable_kv_cache_events": True}


class ListPublisher:
    """Keeps batches; fails when told to."""

    def __init__(self, settings: PublisherSettings | None = None) -> None:
        self.settings = settings
        self.batches: list[KVEventBatch] = []
        self.fails = self.closed = False

    def publish(self, batch: KVEventBatch) -> None:
        if self.fails:
            raise OSError("the network is down")
        self.batches.append(batch)

    def stats(self) -> PublisherStats:
        return PublisherStats(published=len(self.batches))

    def close(self) -> None:
        self.closed = True
        if self.fails:
            raise OSError("the network is down")


class Executor(ToyExecutor):
    def close(self) -> None:
        self.closed = True


def make_core(publisher: ListPublisher) -> tuple[EngineCore, Executor]:
    """A core over the toy executor."""
    executor = Executor()
    scheduler = ToyEngine(executor=executor, kv_events_config=ON).scheduler
    return EngineCore(scheduler, executor, PublisherSink(publisher)), executor


def run(core: EngineCore) -> list[int]:
    """Token ids of all outputs."""
    tokens = []
    while core.has_work():
        for output in core.step():
            tokens += output.token_ids
    return tokens


def test_each_step_that_filled_blocks_is_one_batch_with_its_time() -> None:
    publisher = ListPublisher()
    core, _ = make_core(publisher)
    before = time.time()
    core.add(toy_request("a", list(range(33)), max_tokens=2))
    core.step()
    assert [type(event) for event in publisher.batches[0].events] == [BlockStored]
    core.step()
    assert len(publisher.batches) == 1, "a step that filled no block was published"
    core.add(toy_request("b", list(range(16)), max_tokens=1))
    core.add(toy_request("c", list(range(50, 66)), max_tokens=1))
    core.step()
    assert [len(batch.events) for batch in publisher.batches] == [1, 1], "b adds nothing to a"
    times = [batch.timestamp for batch in publisher.batches]
    assert before <= times[0] <= times[1] <= time.time()


def test_a_reset_is_published_at_once() -> None:
    publisher = ListPublisher()
    core, _ = make_core(publisher)
    core.add(toy_request("a", list(range(33)), max_tokens=3))
    core.step()
    assert not core.reset_prefix_cache(), "blocks of a live request were forgotten"
    run(core)
    assert core.reset_prefix_cache()
    assert publisher.batches[-1].events == [AllBlocksCleared()]
    assert len(publisher.batches) == 2


def test_a_publisher_that_fails_is_counted_and_the_engine_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("pegboard"), "propagate", True)
    publisher = ListPublisher()
    publisher.fails = True
    core, executor = make_core(publisher)
    request = toy_request("a", list(range(33)), max_tokens=20)
    core.add(request)
    assert run(core) == toy_generate(request)
    assert core.kv_event_stats() == PublisherStats(published=0, dropped=2)
    core.close()
    assert publisher.closed
    assert executor.closed, "a publisher kept the device"
    assert caplog.text.count("the KV event publisher failed") == 2, "once for batches, once closing"


def test_without_a_publisher_nothing_is_made_or_counted() -> None:
    executor = Executor()
    scheduler = ToyEngine(executor=executor).scheduler
    core = EngineCore(scheduler, executor)
    core.add(toy_request("a", list(range(33)), max_tokens=2))
    run(core)
    assert scheduler.take_events() == []
    assert core.kv_event_stats() == PublisherStats()


def test_a_scheduler_makes_events_only_when_they_are_wanted() -> None:
    for publisher, events in (("any", 1), ("null", 0)):
        toy = ToyEngine(kv_events_config={**ON, "publisher": publisher})
        toy.add(toy_request("a", list(range(33)), max_tokens=1))
        toy.run()
        assert len(toy.scheduler.take_events()) == events


def board(*names: str) -> Any:
    extra = [("events", EventPublisher(name, open=f"{PLACE}:ListPublisher")) for name in names]
    return load_plugins(extra=extra, environ={"VLLM_PLUGINS": ""})


def parsed(**keys: Any) -> KVEventsConfig | None:
    return parse_kv_events({**ON, **keys})


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that lazy references find."""
    module = types.ModuleType(PLACE)
    monkeypatch.setattr(module, "ListPublisher", ListPublisher, raising=False)
    monkeypatch.setitem(sys.modules, PLACE, module)


@pytest.mark.parametrize("name", ["first", None])
def test_the_publisher_that_is_asked_for_gets_its_own_options(name: str | None) -> None:
    names = ("first",) if name is None else ("first", "second")
    sink = open_sink(board(*names), parsed(publisher=name, endpoint="tcp://*:1"))
    assert isinstance(sink, PublisherSink)
    opened = sink._publisher
    assert isinstance(opened, ListPublisher)
    assert opened.settings == PublisherSettings({"endpoint": "tcp://*:1"}, rank=0)


def test_events_that_are_off_need_no_publisher() -> None:
    for config in (None, parsed(publisher="null"), parse_kv_events({"publisher": "zmq"})):
        assert isinstance(open_sink(board(), config), NullSink)


def test_a_publisher_that_is_not_there_is_named() -> None:
    with pytest.raises(MissingPluginError, match=r"KV event publisher 'zmq'.*kv_events_config"):
        open_sink(board("first"), parsed(publisher="zmq"))
    with pytest.raises(MissingPluginError, match="no KV event publisher is loaded"):
        open_sink(board(), parsed())


def test_several_publishers_need_a_choice() -> None:
    with pytest.raises(SelectionError, match="first, second"):
        open_sink(board("first", "second"), parsed())
