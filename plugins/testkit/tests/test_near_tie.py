"""The near-tie rule lets rounding pass and nothing else."""

from __future__ import annotations

import pytest

from pegboard_testkit.near_tie import Comparison, assert_same, compare


def test_equal_decodings_have_no_ties() -> None:
    found = compare([-0.5, -1.0], [-0.5, -1.0], [-0.5, -1.0])
    assert found == Comparison(positions=2, ties=0, worst_gap=0.0, worst_logprob=0.0)
    assert_same(found)


def test_a_tie_within_the_gap_passes() -> None:
    found = compare([-0.6931], [-0.6930], [-0.6931])
    assert found.ties == 1
    assert_same(found)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Comparison(), "nothing was compared"),
        (compare([-1.0], [-0.5]), "0.5 nats below"),
        (compare([-1.0], [-1.0], [-1.002]), "log-probabilities differ"),
        (Comparison(positions=100, ties=2, worst_gap=1e-4), "2 of 100 positions differ"),
    ],
)
def test_what_is_no_rounding_fails_with_the_figure(found: Comparison, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        assert_same(found)


def test_sums_keep_the_worst() -> None:
    both = compare([-1.0], [-0.9], [-1.5]).add(compare([-2.0], [-2.0], [-2.0]))
    assert (both.positions, both.ties) == (2, 1)
    assert both.worst_gap == pytest.approx(0.1)
    assert both.worst_logprob == pytest.approx(0.5)


def test_sequences_of_different_lengths_are_no_comparison() -> None:
    with pytest.raises(ValueError, match="zip"):
        compare([-1.0], [-1.0, -2.0])
