"""Stop strings are found wherever the text is cut, and nothing of them is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pegboard.errors import RequestError
from pegboard.text.stops import StopMatch, StopMatcher, StopSet


def first_ending(text: str, stops: list[str]) -> StopMatch | None:
    """The plain definition: the match that ends first, the longest of those."""
    found = [
        StopMatch(stop, end - len(stop), end)
        for stop in stops
        for end in range(len(stop), len(text) + 1)
        if text[end - len(stop) : end] == stop
    ]
    return min(found, key=lambda match: (match.end, match.start), default=None)


def longest_open_ending(text: str, stops: list[str]) -> int:
    sizes = [n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])]
    return max(sizes, default=0)


texts = st.text("abc", max_size=30)
stop_lists = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)


@given(pieces=st.lists(texts, max_size=6), stops=stop_lists)
def test_the_first_match_is_found_however_the_text_is_cut(
    pieces: list[str], stops: list[str]
) -> None:
    matcher = StopMatcher(stops)
    found = None
    for piece in pieces:
        found = found or matcher.scan(piece)
    assert found == first_ending("".join(pieces), stops)


@given(text=texts, stops=stop_lists)
def test_all_but_the_longest_beginning_of_a_stop_is_safe(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    if matcher.scan(text) is None:
        assert matcher.safe == len(text) - longest_open_ending(text, stops)


def test_o02_overlapping_beginnings_are_found() -> None:
    assert StopMatcher(["aab"]).scan("aaab") == StopMatch("aab", 1, 4)


def test_o02_the_stop_that_ends_first_counts() -> None:
    matcher = StopMatcher(["ac", "b"])
    assert matcher.scan("a") is None and matcher.safe == 0
    assert matcher.scan("b") == StopMatch("b", 1, 2)


def test_of_stops_that_end_together_the_longest_counts() -> None:
    assert StopMatcher(["b", "aab", "ab"]).scan("caab") == StopMatch("aab", 1, 4)


def test_text_read_unarmed_does_not_match_but_may_begin_a_stop() -> None:
    matcher = StopMatcher(["xy"])
    assert matcher.scan("xyx", armed=False) is None
    assert matcher.safe == 2
    assert matcher.scan("y") == StopMatch("xy", 2, 4)


@pytest.mark.parametrize("stops", [[""], ["", "x"]])
def test_o07_an_empty_stop_string_is_refused(stops: list[str]) -> None:
    with pytest.raises(RequestError, match="at least one character") as caught:
        StopMatcher(stops)
    assert caught.value.field == "stop"


def test_o07_no_stop_strings_find_nothing() -> None:
    matcher = StopMatcher([])
    assert not matcher.active
    assert matcher.scan("anything") is None and matcher.safe == 8


def test_matchers_of_one_set_do_not_meet() -> None:
    stops = StopSet(["ab"])
    first, second = StopMatcher(stops), StopMatcher(stops)
    assert first.scan("a") is None
    assert second.scan("b") is None
    assert first.scan("b") == StopMatch("ab", 0, 2)
