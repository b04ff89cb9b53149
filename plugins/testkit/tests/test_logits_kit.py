"""The logits kit passes right processors and fails wrong ones, each in the test meant for it."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch

from pegboard.api.logits import LogitsCall, LogitsContext, LogitsProcessor, LogitsRow
from pegboard.testing.processors import SCRIPTED_PROCESSORS
from pegboard.testing.scripted_processors import GapRows
from pegboard_testkit.logits_kit import LogitsKit

GAP, PARITY, SHARPNESS = SCRIPTED_PROCESSORS


class TestGap(LogitsKit):
    processor = GAP
    allowed = ({"scripted_gap": 1}, {"scripted_gap": 4}, {"scripted_gap": 30})
    refused = ({"scripted_gap": 0}, {"scripted_gap": "x"}, {"scripted_gap": True})


class TestParity(LogitsKit):
    processor = PARITY
    allowed = ({"scripted_parity": 0}, {"scripted_parity": 1})
    refused = ({"scripted_parity": 2}, {"scripted_parity": None})


class TestSharpness(LogitsKit):
    processor = SHARPNESS
    allowed = ({"scripted_sharpness": 0.5}, {"scripted_sharpness": 3})
    refused = ({"scripted_sharpness": 0}, {"scripted_sharpness": 1000})


class Sticky(GapRows):
    """Keeps what the first request of a slot asked for."""

    def added(self, row: LogitsRow) -> None:
        if row.slot not in self._gaps:
            super().added(row)

    def removed(self, slot: int) -> None:
        pass


class Mixing(GapRows):
    """What a row gets depends on the others."""

    def apply(self, call: LogitsCall) -> torch.Tensor:
        return super().apply(call) - call.logits.mean()


class Emptying(GapRows):
    """Leaves no token."""

    def apply(self, call: LogitsCall) -> torch.Tensor:
        return torch.full_like(call.logits, float("-inf"))


class Forgetful(GapRows):
    """Counts the calls, which start anew after a preemption."""

    def __init__(self, ctx: LogitsContext) -> None:
        super().__init__(ctx)
        self._resumed: set[int] = set()

    def added(self, row: LogitsRow) -> None:
        super().added(row)
        if row.output_ids:
            self._gaps[row.slot] = 60


@pytest.fixture
def kit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., LogitsKit]:
    def make(rows: Any, descriptor: LogitsProcessor = GAP, **changes: Any) -> LogitsKit:
        module = types.ModuleType("wrong_rows")
        module.Rows = rows  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "wrong_rows", module)
        wrong = attrs.evolve(descriptor, build="wrong_rows:Rows", **changes)
        return type("Wrong", (TestGap,), {"processor": wrong})()

    return make


@pytest.mark.parametrize(
    ("rows", "test", "said"),
    [
        (Sticky, "test_nothing_is_left_in_a_slot_that_another_request_gets", "used before"),
        (Mixing, "test_a_row_gets_the_same_alone_and_in_any_company", "in the order"),
        (Emptying, "test_logits_keep_their_shape_and_some_token_is_left", "no token is left"),
        (Forgetful, "test_a_preempted_row_goes_on_as_if_nothing_had_been", "a preemption"),
    ],
)
def test_a_wrong_processor_fails(
    kit: Callable[..., LogitsKit], rows: Any, test: str, said: str
) -> None:
    with pytest.raises(AssertionError, match=said):
        getattr(kit(rows), test)()


def test_a_false_claim_fails(kit: Callable[..., LogitsKit]) -> None:
    with pytest.raises(AssertionError, match="it changed"):
        kit(GapRows, argmax_invariant=True).test_the_likeliest_token_stays_if_that_is_declared()
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        kit(GapRows, check=PARITY.check).test_arguments_are_taken_and_refused()
