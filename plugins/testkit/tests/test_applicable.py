"""Tests of a kit that do not apply are not there."""

from __future__ import annotations

import attrs
import pytest

from pegboard.testing.processors import SCRIPTED_PROCESSORS
from pegboard_testkit.applicable import leave_out
from pegboard_testkit.logits_kit import LogitsKit
from pegboard_testkit.quant_kit import QuantKit

GAP = SCRIPTED_PROCESSORS[0]
LIKELIEST = "test_the_likeliest_token_stays_if_that_is_declared"
SHARED = [
    "test_columns_divided_among_ranks_are_those_of_the_whole",
    "test_rows_divided_among_ranks_add_up_to_the_whole",
]


def test_a_processor_that_moves_the_likeliest_token_is_not_tried_for_it() -> None:
    for invariant in (False, True):
        processor = attrs.evolve(GAP, argmax_invariant=invariant)
        kit = type("Kit", (LogitsKit,), {"processor": processor})
        assert callable(getattr(kit, LIKELIEST)) == invariant


def test_what_a_class_in_between_leaves_out_comes_back() -> None:
    undivided = type("Undivided", (QuantKit,), {"world": 1})
    divided = type("Divided", (undivided,), {"world": 3})
    for name in SHARED:
        assert getattr(undivided, name) is None
        assert getattr(divided, name) is getattr(QuantKit, name)


def test_an_unknown_test_is_an_error() -> None:
    with pytest.raises(AttributeError):
        leave_out(type("Kit", (LogitsKit,), {}), False, "test_no_such")
