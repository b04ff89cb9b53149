"""The scheduler kit passes the core's own scheduler and fails wrong ones."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from pegboard.api.scheduler import SchedulerClass, SchedulerContext
from pegboard.api.step import StepPlan, StepResult
from pegboard.api.views import EngineOutput, EngineRequest
from pegboard.testing.boards import board_with, own_board
from pegboard_testkit.scheduler_kit import SchedulerKit

OWN = own_board().registry("scheduler").get("token-budget")


class TestTokenBudget(SchedulerKit):
    scheduler = OWN


class Around:
    """The core's scheduler, with one thing done wrong."""

    def __init__(self, ctx: SchedulerContext) -> None:
        self._inner = ctx.build("token-budget")
        self._last: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Repeating(Around):
    """Plans one row twice."""

    def plan(self) -> StepPlan:
        plan = self._inner.plan()
        if plan.rows == 2:
            plan.slots[1] = plan.slots[0]
        return plan


class Silent(Around):
    """Does not tell of aborted requests."""

    def abort(self, ids: Iterable[str]) -> list[EngineOutput]:
        self._inner.abort(ids)
        return []


class Restless(Around):
    """Always has work."""

    def plan(self) -> StepPlan:
        plan = self._inner.plan()
        plan.dummy = True
        return plan


class Lossy(Around):
    """Loses a token now and then."""

    def update(self, plan: StepPlan, result: StepResult) -> list[EngineOutput]:
        outputs = self._inner.update(plan, result)
        for output in outputs:
            if len(output.token_ids) == 1 and output.token_ids[0] % 7 == 0:
                output.token_ids = []
        return outputs


class Credulous(Around):
    """Takes an id that is in use."""

    def add(self, request: EngineRequest) -> None:
        try:
            self._inner.add(request)
        except ValueError:
            return


@pytest.fixture
def kit(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], SchedulerKit]:
    def make(scheduler: Any) -> SchedulerKit:
        module = types.ModuleType("wrong_scheduler")
        module.Wrong = scheduler  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "wrong_scheduler", module)
        found = SchedulerClass("wrong", "wrong_scheduler:Wrong", max_in_flight=2)
        return type("Wrong", (SchedulerKit,), {"scheduler": found})()

    return make


@pytest.mark.parametrize(
    ("scheduler", "test", "said"),
    [
        (Repeating, "test_plans_keep_the_rules", "a slot stands twice"),
        (Silent, "test_an_aborted_request_is_told_once_and_gives_everything_back", "abort"),
        (Restless, "test_an_idle_scheduler_plans_nothing", "not idle"),
        (Lossy, "test_every_request_gets_the_tokens_it_gets_alone", "differs"),
    ],
)
def test_a_wrong_scheduler_fails(
    kit: Callable[[Any], SchedulerKit], scheduler: Any, test: str, said: str
) -> None:
    wrong = kit(scheduler)
    board = board_with("scheduler", wrong.scheduler)
    with pytest.raises(AssertionError, match=said):
        getattr(wrong, test)(board)


def test_a_scheduler_that_takes_an_id_twice_fails(kit: Callable[[Any], SchedulerKit]) -> None:
    wrong = kit(Credulous)
    board = board_with("scheduler", wrong.scheduler)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        wrong.test_an_id_in_use_and_a_request_that_never_fits_are_refused(board)
