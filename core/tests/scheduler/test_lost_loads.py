"""Loads that were given up: nobody uses their blocks before the worker has stopped writing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pegboard.api.connector import KVTransferConfig, StepView, TransferReport
from pegboard.api.step import StepResult
from pegboard.plugins import Board, build_board
from pegboard.testing.connectors import SCRIPTED_CONNECTOR
from pegboard.testing.scripted_connector import Script
from pegboard.testing.toy import toy_generate
from pegboard.testing.toy_connected import Clock, InsistentHalf, connected_engine
from pegboard.testing.toy_engine import ToyEngine, toy_request
from pegboard.testing.toy_paged import Faults

PROMPT = list(range(50))
LOADED = 6
"""Blocks of `PROMPT` that come from outside."""
FAULTS = [frozenset[str](), frozenset({"step"}), frozenset({"drop"}), frozenset({"step", "drop"})]


@pytest.fixture(scope="module")
def board() -> Board:
    return build_board(environ={"VLLM_PLUGINS": ""}, extra=[("connector", SCRIPTED_CONNECTOR)])


@pytest.fixture
def make(board: Board) -> Callable[..., ToyEngine]:
    def build(script: Script, **options: Any) -> ToyEngine:
        config = KVTransferConfig(
            kv_connector="scripted", kv_connector_extra_config={"script": script}
        )
        return connected_engine(board, config, **{"block_size": 8, "watermark": 0.0, **options})

    return build


def used(engine: ToyEngine) -> int:
    return engine.scheduler.stats().used_blocks


def late_load(make: Callable[..., ToyEngine], script: Script, **options: Any) -> ToyEngine:
    """An engine whose only request gave up its load, with the time that it had; the worker would
    still write to the blocks, some steps later."""
    script.outcomes, script.delay, script.timeout = ("later",), 12, 30.0
    clock = Clock()
    engine = make(script, clock=clock, **options)
    engine.add(toy_request("late", PROMPT, 30))
    engine.step()
    assert engine.scheduler.loading() == {"late"}
    clock.now = 30.0
    return engine


def check_answers(engine: ToyEngine, *wanted: Any) -> None:
    for request in wanted:
        assert engine.told[request.request_id].token_ids == toy_generate(request)
    assert used(engine) == 0, "a block is lost"


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("breaks", FAULTS)
def test_a_load_whose_time_is_up_writes_into_nobodys_blocks(
    make: Callable[..., ToyEngine], filled: Script, breaks: frozenset[str], depth: int
) -> None:
    """Whatever breaks down after its time was up. All other blocks are needed, so that its own
    would be used at once if they were free."""
    engine = late_load(make, filled, blocks=1 + 2 * LOADED + 8, depth=depth)
    filled.breaks = breaks
    others = [toy_request(f"other{n}", [80 + n] * 30, 30) for n in range(3)]
    for request in others:
        engine.add(request)
    engine.run()
    check_answers(engine, toy_request("late", PROMPT, 30), *others)
    assert filled.counts["drop"] > 0


def test_blocks_of_a_load_whose_time_is_up_come_back_once_the_worker_has_stopped(
    make: Callable[..., ToyEngine], filled: Script
) -> None:
    engine = late_load(make, filled)
    engine.step()
    assert used(engine) == LOADED, "they are free though the worker has not heard of it"
    engine.abort("late")
    engine.step()
    assert filled.counts["drop"] == 1
    assert used(engine) == 0


def test_blocks_stay_reserved_while_the_worker_cannot_be_stopped_until_it_says_that_it_is_over(
    make: Callable[..., ToyEngine], filled: Script
) -> None:
    engine = late_load(make, filled)
    filled.breaks = frozenset({"drop"})
    engine.step()
    engine.abort("late")
    loaded = filled.counts["loaded"]
    while engine.scheduler.has_work():
        assert used(engine) == LOADED
        engine.step()
    assert filled.counts["loaded"] == loaded + LOADED, "nothing was written"
    assert filled.counts["drop"] > 5, "it was not tried again"
    assert used(engine) == 0


def test_a_step_that_broke_down_does_not_swallow_which_loads_were_given_up(
    make: Callable[..., ToyEngine], filled: Script
) -> None:
    engine = late_load(make, filled)
    views = listening(engine)
    (load,) = engine.plans[0].connector.loads
    engine.step()
    filled.breaks = frozenset({"step"})
    engine.step()
    filled.breaks = frozenset()
    engine.step()
    engine.step()
    assert [view.dropped for view in views[1:4]] == [(load.load_id,), (load.load_id,), ()]


def test_the_loads_of_a_step_that_broke_down_are_given_up(
    make: Callable[..., ToyEngine], filled: Script
) -> None:
    """A half that had queued them must not begin them later."""
    filled.outcomes = ("later",)
    engine = make(filled)
    views = listening(engine)
    filled.breaks = frozenset({"step"})
    engine.add(toy_request("r", PROMPT, 4))
    engine.step()
    filled.breaks = frozenset()
    engine.step()
    assert [load.load_id for load in views[0].loads] == list(views[1].dropped) != []


def listening(engine: ToyEngine) -> list[StepView]:
    """All views that the connector gets from now on."""
    views: list[StepView] = []
    assert engine.connected is not None and isinstance(engine.connected.half, InsistentHalf)
    half = engine.connected.half.half
    step = half.step

    def listen(view: StepView) -> Any:
        views.append(view)
        return step(view)

    half.step = listen  # type: ignore[method-assign]
    return views


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("outcome", ["now", "later"])
@pytest.mark.parametrize("breaks", [{"started"}, {"started", "drop"}])
def test_what_a_worker_began_before_it_broke_down_writes_into_nobodys_blocks(
    make: Callable[..., ToyEngine], filled: Script, breaks: set[str], outcome: Any, depth: int
) -> None:
    filled.outcomes, filled.delay = (outcome,), 8
    engine = make(filled, blocks=1 + 2 * LOADED + 8, depth=depth, clock=(clock := Clock()))
    wanted = [toy_request("r", PROMPT, 30)]
    wanted += [toy_request(f"other{n}", [80 + n] * 30, 30) for n in range(3)]
    filled.breaks = frozenset(breaks)
    for request in wanted:
        engine.add(request)
    for _ in range(3):
        engine.step()
    filled.breaks = frozenset(breaks - {"started"})
    for _ in range(12):
        engine.step()
    filled.breaks = frozenset()
    engine.run()
    check_answers(engine, *wanted)
    assert clock.now == 0.0, "no time limit was needed"


def test_a_load_within_a_step_that_went_astray_reserves_its_blocks_though_its_request_is_gone(
    make: Callable[..., ToyEngine], filled: Script
) -> None:
    def astray(report: TransferReport) -> TransferReport:
        report.astray += [load.load_id for load in engine.plans[-1].connector.loads]
        return report

    filled.breaks = frozenset({"drop"})
    engine = make(filled, depth=2, faults=Faults(distort=astray))
    engine.add(toy_request("r", PROMPT, 4))
    engine.launch()
    engine.abort("r")
    engine.land()
    assert used(engine) == LOADED
    filled.breaks = frozenset()
    engine.run()
    assert used(engine) == 0


@pytest.mark.parametrize("outcome", ["now", "later"])
def test_blocks_stay_reserved_after_a_step_that_was_given_up_while_it_loaded(
    make: Callable[..., ToyEngine], filled: Script, outcome: Any
) -> None:
    filled.outcomes = (outcome,)
    engine = make(filled)
    engine.add(toy_request("r", PROMPT, 4))
    plan = engine.scheduler.plan()
    given_up = dict.fromkeys(plan.slots, "interrupted")
    engine.scheduler.update(plan, StepResult(plan.step_id, [], [], failed=given_up))
    engine.abort("r")
    assert used(engine) == LOADED, "what the step began may go on"
