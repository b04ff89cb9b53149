"""Which steps are run before the first request."""

from __future__ import annotations

import pytest

from pegboard.runner.slots import Limits
from pegboard.runner.warm_up import DummyRows, warm_up_rows

CASES = [
    (rows, tokens, length)
    for rows in (1, 2, 3, 7, 256)
    for tokens in (1, 2, 31, 32, 100, 16384)
    for length in (1, 16, 17, 40, 8192)
]


def limits(rows: int, tokens: int, length: int) -> Limits:
    return Limits(max_rows=rows, max_tokens=tokens, max_model_len=length, vocab_size=100)


@pytest.mark.parametrize(("rows", "tokens", "length"), CASES)
def test_every_step_keeps_to_the_limits(rows: int, tokens: int, length: int) -> None:
    for step in warm_up_rows(limits(rows, tokens, length), every_size=True):
        assert 0 < len(step.counts) == len(step.starts) <= rows
        assert 0 < sum(step.counts) <= tokens and min(step.counts) > 0
        assert all(n + m <= length for n, m in zip(step.counts, step.starts, strict=True))


def sums(steps: list[DummyRows]) -> list[int]:
    return [sum(step.counts) for step in steps]


def test_sizes_double_up_to_the_budget_and_small_ones_are_odd_too() -> None:
    steps = list(warm_up_rows(limits(256, 12000, 8192), every_size=True))
    assert sums(steps) == [16, 1, *(size - odd for size in [32, 64, 128, 256, 512, 1024, 2048, 4096]
                                    for odd in (0, 1)), 8192, 12000]  # fmt: skip


def test_a_mixed_step_has_every_sort_of_row() -> None:
    *_, last = warm_up_rows(limits(256, 16384, 4096), every_size=True)
    assert sum(last.counts) == 16384
    sorts = {(count > 1, start > 0) for count, start in zip(last.counts, last.starts, strict=True)}
    assert sorts == {(False, True), (True, False), (True, True)}


def test_where_speed_does_not_come_from_kernels_two_steps_are_enough() -> None:
    assert sums(list(warm_up_rows(limits(256, 12000, 8192), every_size=False))) == [16, 1]
