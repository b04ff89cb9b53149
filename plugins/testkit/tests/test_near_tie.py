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


NAN = float("nan")


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("sequence", ["chosen", "best", "logprobs"])
def test_what_is_not_a_number_fails_wherever_it_stands(sequence: str, place: int) -> None:
    given = {name: [-1.0] * 3 for name in ("chosen", "best", "logprobs")}
    assert_same(compare(**given))
    given[sequence][place] = NAN
    found = compare(**given)
    good = Comparison(positions=5)
    for summed in (found, good.add(found), found.add(good)):
        with pytest.raises(AssertionError, match="nan"):
            assert_same(summed)


def test_a_token_that_the_reference_excludes_fails() -> None:
    with pytest.raises(AssertionError, match="inf nats below"):
        assert_same(compare([-float("inf")], [-1.0]))


def test_a_likeliest_token_that_is_not_the_likeliest_is_refused() -> None:
    with pytest.raises(ValueError, match=r"best\[1\]=-3.0 is below chosen\[1\]=-0.5"):
        compare([-1.0, -0.5], [-1.0, -3.0])


def test_more_ties_are_allowed_in_longer_comparisons() -> None:
    assert_same(Comparison(positions=300, ties=3, worst_gap=1e-4))
    with pytest.raises(AssertionError, match="4 of 300"):
        assert_same(Comparison(positions=300, ties=4, worst_gap=1e-4))


def test_sums_keep_the_worst() -> None:
    both = compare([-1.0], [-0.9], [-1.5]).add(compare([-2.0], [-2.0], [-2.0]))
    assert (both.positions, both.ties) == (2, 1)
    assert both.worst_gap == pytest.approx(0.1)
    assert both.worst_logprob == pytest.approx(0.5)


def test_sequences_of_different_lengths_are_no_comparison() -> None:
    with pytest.raises(ValueError, match="zip"):
        compare([-1.0], [-1.0, -2.0])
