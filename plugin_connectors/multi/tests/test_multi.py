"""Order, roles, shared blocks and faults of connectors inside ``multi``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from pegboard.api.connector import (
    Allocated,
    FailedBlock,
    Finished,
    Keep,
    KVTransferConfig,
    Later,
    Load,
    Match,
    MatchAnswer,
    Now,
    Pending,
    Piece,
    SchedulerHalf,
    SchedulerHalfContext,
    StepOrder,
    StepView,
    StoreEvent,
    TransferReport,
    WorkerHalf,
    WorkerHalfContext,
)
from pegboard.api.params import SamplingParams
from pegboard.api.views import BlocksView, RequestView
from pegboard.errors import ConfigError, PluginError
from pegboard.testing.scripted_connector import Script
from pegboard.testing.toy_connected import connected_engine, installed_board
from pegboard_connector_multi.scheduler import MultiScheduler
from pegboard_connector_multi.settings import Settings
from pegboard_connector_multi.worker import MultiWorker
from pegboard_testkit.connector_case import requests, run

PIECES = (Piece(0, 0, 5, b"a"), Piece(0, 1, 6, b"b"))
NO_BLOCKS = BlocksView(((),))


class PlanningHalf(SchedulerHalf):
    """Answers what it is told to, and remembers what it saw."""

    def __init__(self, handshakes: Any) -> None:
        self.handshakes = handshakes
        self.answer: Any = Now(0)
        self.order: Any = StepOrder()
        self.keep: Any = None
        self.breaks: set[str] = set()
        self.seen: dict[str, list[Any]] = {}

    def _enter(self, name: str, value: Any = None) -> None:
        self.seen.setdefault(name, []).append(value)
        if name in self.breaks:
            raise OSError(f"{name} fails")

    def match(self, question: Match) -> MatchAnswer:
        self._enter("match", question)
        return self.answer  # type: ignore[no-any-return]

    def allocated(self, what: Allocated) -> None:
        self._enter("allocated", what)

    def step(self, view: StepView) -> StepOrder:
        self._enter("step", view)
        return self.order  # type: ignore[no-any-return]

    def finished(self, what: Finished) -> Keep | None:
        self._enter("finished", what)
        return self.keep  # type: ignore[no-any-return]

    def report(self, report: TransferReport) -> None:
        self._enter("report", report)

    def events(self) -> Sequence[StoreEvent]:
        return [StoreEvent("stored", 0, (b"a",), "cpu")]

    def stats(self) -> Mapping[str, float]:
        return {"blocks": 2.0}

    def reset(self, reason: str) -> None:
        self._enter("reset", reason)


class WorkingHalf(WorkerHalf):
    """Reports what it is told to, and remembers its calls."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.calls: list[Any] = []
        self.next = TransferReport()
        self.breaks: set[str] = set()

    def _enter(self, name: str, *values: Any) -> None:
        self.calls.append((name, *values))
        if name in self.breaks:
            raise OSError(f"{name} fails")

    def attach(self, kv: Any, cache: Any, device: Any) -> Any:
        return {"place": self.place}

    def start_load(self, metadata: Any) -> None:
        self._enter("start_load", metadata)

    def drop(self, load_id: int) -> bool:
        self._enter("drop", load_id)
        return True

    def wait_save(self) -> None:
        self._enter("wait_save")

    def poll(self) -> TransferReport:
        self._enter("poll")
        report, self.next = self.next, TransferReport()
        return report


class LayerwiseHalf(WorkingHalf):
    def wait_layer(self, key: str) -> None:
        self._enter("wait_layer", key)

    def save_layer(self, key: str) -> None:
        self._enter("save_layer", key)


class Slot:
    def __init__(self, key: str) -> None:
        self.key = key


class Pair:
    """Both halves of ``multi`` with recording halves inside, joined as by the core."""

    def __init__(
        self, count: int = 2, *, roles: Sequence[str] = (), isolate: bool = True, **kinds: Any
    ) -> None:
        roles = roles or ["kv_both"] * count
        children = [{"kv_connector": f"c{n}", "kv_role": roles[n]} for n in range(count)]
        config = KVTransferConfig(
            kv_connector="multi",
            kv_connector_extra_config={"connectors": children, "isolate": isolate},
        )
        self.works: list[WorkingHalf] = []
        self.plans: list[PlanningHalf] = []
        kind = kinds.get("kind", WorkingHalf)

        def work(config: KVTransferConfig) -> WorkerHalf:
            self.works.append(kind(len(self.works)))
            return self.works[-1]

        def plan(config: KVTransferConfig, handshakes: tuple[Any, ...]) -> SchedulerHalf:
            self.plans.append(PlanningHalf(handshakes))
            return self.plans[-1]

        self.worker = MultiWorker(
            WorkerHalfContext(config=config, identity={}, rank=0, ranks=1, connector=work)
        )
        handshake: Any = self.worker.attach([Slot("0.self"), Slot("1.self")], None, None)  # type: ignore[list-item, arg-type]
        self.half = MultiScheduler(
            SchedulerHalfContext(
                config=config,
                groups=(),
                unit=8,
                border=8,
                identity={},
                handshakes=(handshake,),
                longest=lambda hashes, limit, has: 0,
                connector=plan,
            )
        )

    def ask(self, computed: int = 0, limit: int = 16) -> MatchAnswer:
        return self.half.match(Match(request(), computed, limit))

    def allocate(self, load_id: int, *, now: bool = False) -> Load:
        load = Load(load_id, "r", now, 16, PIECES)
        self.half.allocated(Allocated(request(), NO_BLOCKS, load))
        return load

    def step(self, step_id: int = 1, **fields: Any) -> StepOrder:
        """Plan, and let the worker half work."""
        order = self.half.step(view(step_id, **fields))
        self.worker.start_load(msgspec.msgpack.decode(msgspec.msgpack.encode(order.metadata)))
        self.worker.wait_save()
        return order

    def poll(self) -> TransferReport:
        report = self.worker.poll()
        self.half.report(report)
        return report


def request() -> RequestView:
    return RequestView("r", [1] * 20, [], 0, [b"a", b"b"], 0, 0.0, SamplingParams(), *[None] * 4)  # type: ignore[arg-type]


def view(step_id: int, **fields: Any) -> StepView:
    empty: dict[str, Any] = dict.fromkeys(StepView.__struct_fields__, ())
    return StepView(**{**empty, "step_id": step_id, "request_ids": ("r",), **fields})


def finish(pair: Pair, keep_id: int = 9) -> Keep | None:
    return pair.half.finished(Finished(request(), NO_BLOCKS, "stop", keep_id))


def test_each_connector_gets_its_own_handshake() -> None:
    pair = Pair()
    assert [half.handshakes for half in pair.plans] == [({"place": 0},), ({"place": 1},)]


def test_the_first_that_has_something_loads_it_and_no_other_is_asked() -> None:
    pair = Pair(3)
    pair.plans[1].answer, pair.plans[2].answer = Later(8), Now(16)
    assert pair.ask() == Later(8)
    assert "match" not in pair.plans[2].seen
    load = pair.allocate(1)
    assert [len(half.seen.get("allocated", ())) for half in pair.plans] == [0, 1, 0]
    pair.step(loads=(load,))
    assert [half.seen["step"][0].loads for half in pair.plans] == [(), (load,), ()]


def test_an_answer_that_is_not_a_whole_block_is_passed_over() -> None:
    pair = Pair()
    pair.plans[0].answer, pair.plans[1].answer = Now(7), Now(8)
    assert pair.ask() == Now(8)
    pair.plans[0].answer = Later(8)
    assert pair.ask(computed=4) == Later(8), "with what is there it is one"


def test_one_that_does_not_know_yet_is_waited_for() -> None:
    pair = Pair()
    pair.plans[0].answer, pair.plans[1].answer = Pending(), Now(16)
    assert pair.ask() == Pending()
    pair.plans[0].answer = Now(0)
    assert pair.ask() == Now(16)


def test_roles_hold_for_each_connector() -> None:
    pair = Pair(3, roles=["kv_producer", "kv_consumer", "kv_both"])
    pair.plans[0].answer = Now(16)
    assert pair.ask() == Now(0)
    pair.step(filled=PIECES)
    assert [half.seen["step"][0].filled for half in pair.plans] == [PIECES, (), PIECES]


def test_reports_reach_the_connector_whose_load_it_was() -> None:
    pair = Pair()
    pair.plans[1].answer = Later(16)
    pair.ask()
    pair.step(loads=(pair.allocate(4),))
    bad = FailedBlock(4, 0, 6)
    pair.works[1].next = TransferReport([4], [bad], stats={"n": 2.0}, extra={"x": 1})
    pair.works[0].next = TransferReport(stats={"n": 1.0})
    report = pair.poll()
    assert (report.received, report.failed) == ([4], [bad])
    assert report.stats == {"multi_0_n": 1.0, "multi_1_n": 2.0}
    first, second = (half.seen["report"][0] for half in pair.plans)
    assert (first.received, first.failed, first.extra) == ([], [], None)
    assert (second.received, second.failed, second.extra) == ([4], [bad], {"x": 1})


def test_a_load_given_up_is_told_to_its_connector_only() -> None:
    pair = Pair()
    pair.plans[1].answer = Later(16)
    pair.ask()
    pair.step(loads=(pair.allocate(4),))
    pair.step(2, dropped=(4,))
    assert [half.seen["step"][1].dropped for half in pair.plans] == [(), (4,)]


def test_a_load_given_up_is_told_again_after_a_step_that_broke_down() -> None:
    pair = Pair()
    pair.plans[1].answer = Later(16)
    pair.ask()
    pair.step(loads=(pair.allocate(4),))
    pair.plans[1].breaks = {"step"}
    pair.step(2, dropped=(4,), loads=(pair.allocate(5),))
    pair.plans[1].breaks = set()
    pair.step(3)
    pair.step(4)
    assert [seen.dropped for seen in pair.plans[1].seen["step"][-2:]] == [(4, 5), ()]
    assert all(seen.dropped == () for seen in pair.plans[0].seen["step"])


def test_a_load_is_stopped_by_who_brings_it_and_by_nobody_else() -> None:
    pair = Pair()
    pair.plans[1].answer = Later(16)
    pair.ask()
    pair.step(loads=(pair.allocate(4),))
    assert pair.worker.drop(4)
    assert ("drop", 4) in pair.works[1].calls and ("drop", 4) not in pair.works[0].calls
    pair.works[1].breaks = {"drop"}
    assert not pair.worker.drop(4), "it may still write"
    assert pair.worker.drop(77), "nobody was told of it"


@pytest.mark.parametrize("stops", [True, False])
def test_loads_that_begin_while_a_connector_breaks_down_are_stopped_or_astray(stops: bool) -> None:
    pair = Pair()
    pair.plans[0].answer = Later(16)
    pair.ask()
    pair.works[0].breaks = {"start_load"} if stops else {"start_load", "drop"}
    pair.step(loads=(pair.allocate(3),))
    report = pair.poll()
    assert (report.received, report.astray) == ([3], [] if stops else [3])


def test_held_blocks_are_free_when_the_last_holder_is_done() -> None:
    pair = Pair(3)
    pair.plans[0].order = StepOrder({"a": 1}, (5, 6), 10.0)
    pair.plans[2].order = StepOrder(None, (6, 7), 20.0)
    order = pair.step(3)
    assert order.holds == (5, 6, 7) and order.timeout == 20.0
    assert pair.works[0].calls[0] == ("start_load", {"a": 1})
    pair.works[0].next = TransferReport(saved=[3])
    pair.works[1].next = TransferReport(saved=[3])  # it holds nothing
    assert pair.poll().saved == []
    pair.works[0].next = TransferReport(saved=[3])  # told twice
    assert pair.poll().saved == []
    pair.works[2].next = TransferReport(saved=[3])
    assert pair.poll().saved == [3]


def test_kept_blocks_are_free_when_the_last_keeper_is_done() -> None:
    pair = Pair(3)
    pair.plans[0].keep = Keep(5.0, {"host": "a", "port": 1})
    pair.plans[1].keep = Keep(9.0, {"host": "b", "room": 2})
    assert finish(pair) == Keep(9.0, {"host": "a", "port": 1, "room": 2})
    pair.step()
    pair.works[1].next = TransferReport(sent=[9])
    assert pair.poll().sent == []
    pair.works[0].next = TransferReport(sent=[9])
    assert pair.poll().sent == [9]
    pair.works[0].next = TransferReport(sent=[9, 77])
    assert pair.poll().sent == []


def test_nothing_is_kept_if_nobody_keeps() -> None:
    assert finish(Pair()) is None


def test_a_connector_that_breaks_down_counts_as_having_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pair = Pair()
    pair.plans[0].breaks = {"match", "step", "finished", "report", "reset"}
    pair.works[0].breaks = {"poll"}
    pair.plans[1].answer, pair.plans[1].keep = Now(16), Keep(1.0)
    with caplog.at_level(logging.WARNING):
        assert pair.ask() == Now(16)
        pair.step(loads=(pair.allocate(1, now=True),), filled=PIECES)
        assert pair.poll().failed == []
        assert finish(pair) == Keep(1.0)
        pair.half.reset("cache")
    assert pair.plans[1].seen["step"][0].filled == PIECES
    assert pair.plans[1].seen["reset"] == ["cache"]
    assert [call[0] for call in pair.works[0].calls] == ["poll"], "it is only polled"
    assert "connector 0 (c0) failed in match" in caplog.records[0].getMessage()


@pytest.mark.parametrize("where", ["step", "start_load"])
@pytest.mark.parametrize("now", [True, False])
def test_loads_of_a_connector_that_breaks_down_have_failed(where: str, now: bool) -> None:
    pair = Pair()
    pair.plans[0].answer = Now(16) if now else Later(16)
    pair.ask()
    load = pair.allocate(3, now=now)
    (pair.plans if where == "step" else pair.works)[0].breaks.add(where)  # type: ignore[attr-defined]
    pair.step(loads=(load,))
    report = pair.poll()
    assert report.failed == [FailedBlock(3, 0, 5), FailedBlock(3, 0, 6)]
    assert report.received == ([] if now else [3])
    assert pair.poll().failed == [], "told once"


def test_a_load_that_nobody_was_told_of_still_finds_its_connector() -> None:
    pair = Pair()
    pair.plans[1].answer = Now(16)
    pair.ask()
    load = Load(3, "r", True, 16, PIECES)  # `allocated` was lost
    pair.step(loads=(load,))
    assert pair.plans[1].seen["step"][0].loads == (load,)


def test_a_load_of_nobody_has_failed() -> None:
    pair = Pair()
    pair.step(loads=(Load(3, "stranger", False, 16, PIECES),))
    report = pair.poll()
    assert report.received == [3] and len(report.failed) == 2


def test_without_isolation_a_fault_is_one_of_the_whole() -> None:
    pair = Pair(isolate=False)
    pair.plans[0].breaks = {"match"}
    pair.works[1].breaks = {"start_load"}
    with pytest.raises(OSError, match="match fails"):
        pair.ask()
    with pytest.raises(OSError, match="start_load fails"):
        pair.step()


@pytest.mark.parametrize(
    ("field", "value", "call"),
    [
        ("answer", 16, lambda pair: pair.ask()),
        ("order", {}, lambda pair: pair.step()),
        ("keep", True, finish),
    ],
)
def test_a_broken_contract_is_never_held_back(
    field: str, value: object, call: Callable[[Pair], Any]
) -> None:
    pair = Pair()
    setattr(pair.plans[0], field, value)
    with pytest.raises(PluginError, match="'c0'"):
        call(pair)


def test_a_layerwise_connector_is_served_around_the_whole_forward_pass() -> None:
    pair = Pair(1, kind=LayerwiseHalf)
    pair.step()
    names = [call[0] for call in pair.works[0].calls]
    assert names == ["start_load", *["wait_layer"] * 2, *["save_layer"] * 2, "wait_save"]
    assert pair.works[0].calls[1:3] == [("wait_layer", "0.self"), ("wait_layer", "1.self")]
    pair.works[0].calls.clear()
    pair.step(2, request_ids=())
    assert [call[0] for call in pair.works[0].calls] == ["start_load", "wait_save"]


def test_figures_and_news_of_all_are_told() -> None:
    pair = Pair()
    assert pair.half.stats() == {"multi_0_blocks": 2.0, "multi_1_blocks": 2.0}
    assert len(pair.half.events()) == 2


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        ({}, "'connectors' is missing"),
        ({"connectors": []}, "at least one"),
        ({"connectors": {"kv_connector": "x"}}, "a list"),
        ({"connectors": [{"kv_role": "kv_both"}]}, r"connectors\[0\].*'kv_connector' is missing"),
        ({"connectors": [{"kv_connector": "x", "role": 1}]}, "key 'role'"),
        (
            {"connectors": [{"kv_connector": "x", "kv_load_failure_policy": "fail"}]},
            "one for all",
        ),
        ({"connectors": [{"kv_connector": "x"}], "isolate": 1}, "isolate=1"),
        ({"connectors": [{"kv_connector": "x"}], "isolated": True}, "did you mean 'isolate'"),
    ],
)
def test_settings_are_checked(extra: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Settings.read(extra)


def test_a_second_store_serves_what_the_first_one_lacks() -> None:
    board, large, small = installed_board(), Script(), Script(outcomes=("later",))

    def open_engine() -> Any:
        children = [
            {"kv_connector": "scripted", "kv_connector_extra_config": {"script": script}}
            for script in (small, large)
        ]
        config = KVTransferConfig(
            kv_connector="multi", kv_connector_extra_config={"connectors": children}
        )
        return connected_engine(board, config, block_size=8)

    run(open_engine(), requests())
    assert small.store.keys() == large.store.keys() and len(small.store) == 22
    small.store.clear()
    engine = open_engine()
    run(engine, requests())
    assert small.counts["loaded"] == 0 and large.counts["loaded"] > 0
    assert small.store, "what was computed anew is saved in both again"
    engine = open_engine()
    run(engine, requests(salt="none"))
    assert engine.scheduler.stats().connector["multi_1_scripted_blocks"] == len(large.store)
