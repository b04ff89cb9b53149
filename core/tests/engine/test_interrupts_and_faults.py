"""Interrupts at any point and faults of the executor, with one step in flight and with two."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any

import pytest

from pegboard.api.step import NewRow
from pegboard.handlers import handle, handler_of
from pegboard.testing.scripted_masks import ScriptedMasks, by_the_third
from pegboard.testing.toy import toy_generate
from pegboard.testing.toy_core import CoreRun, toy_core
from pegboard.testing.toy_engine import toy_request

TOY_VOCABULARY = 97


class Trap:
    """Does something at the n-th call of a method of `target`, around it."""

    def __init__(self, target: Any, name: str, call: int, act: Callable[[], None]) -> None:
        self._inner, self._left, self._act = getattr(target, name), call, act
        setattr(target, name, self)

    def __call__(self, *args: Any) -> Any:
        self._left -= 1
        result = self._inner(*args)
        if self._left == 0:
            self._act()
        return result


def raise_interrupt() -> None:
    raise KeyboardInterrupt


def press_the_key() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("call", [1, 2, 5])
@pytest.mark.parametrize("where", ["execute", "sample", "plan", "update", "planned", "updated"])
def test_an_interrupt_anywhere_drops_the_steps_in_flight_and_nothing_else(
    where: str, call: int, overlap: bool
) -> None:
    engine = toy_core(
        overlap,
        late=ScriptedMasks(TOY_VOCABULARY, by_the_third),
        max_num_seqs=2,
        max_num_batched_tokens=16,
    )
    outside = where in ("execute", "sample")
    target = engine.executor if outside else engine._late
    target = engine.scheduler if where in ("plan", "update") else target
    Trap(target, where, call, raise_interrupt if outside else press_the_key)
    requests = [toy_request(f"{n}", [n] * 20, 12) for n in range(1, 6)]
    run = CoreRun(engine, requests)
    with pytest.raises(KeyboardInterrupt):
        run.finish()
    engine.scheduler.check()
    told = run.finish()
    dropped = [name for name, item in told.items() if item.finish_reason == "error"]
    assert len(dropped) <= 2, "requests that were not in flight are not hurt"
    assert dropped or where == "updated" or (where, call) == ("update", 1) or not overlap
    for request in requests:
        row = NewRow(0, request.prompt_ids, [], request.params, 0, 0, [], [])
        whole = toy_generate(request, by_the_third(row))
        item = told[request.request_id]
        if request.request_id in dropped:
            assert item.last is not None and item.last.error == "the step was interrupted"
            assert item.token_ids == whole[: len(item.token_ids)]
        else:
            assert item.token_ids == whole, "what was told before the interrupt is not lost"


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("where", ["execute", "sample"])
def test_a_fault_of_the_executor_is_raised_and_the_engine_can_be_closed(
    where: str, overlap: bool
) -> None:
    engine = toy_core(overlap)

    def fail() -> None:
        raise OSError("no device")

    Trap(engine.executor, where, 4, fail)
    run = CoreRun(engine, [toy_request("a", [1], 20)])
    with pytest.raises(OSError, match="no device"):
        run.finish()
    assert 1 <= len(run.told["a"].token_ids) <= 3
    engine.close()


def test_looking_at_handlers_makes_no_enumerations() -> None:
    assert isinstance(handler_of, BuiltinFunctionType)
    assert isinstance(handle, BuiltinFunctionType)
