"""Rows are cut into calls of few shapes that cover every pair of a query and a key once."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pegboard.errors import ConfigError
from pegboard_attention_flash.cuts import (
    LEAST,
    Buckets,
    Group,
    Part,
    buckets_for,
    grouped,
    parts_of,
)

SMALL = Buckets((4, 6, 8, 16), (4, 8, 16), (8, 4), together=2, together_below=6)

lengths = st.integers(1, 40)
rows = st.lists(st.tuples(lengths, st.integers(0, 60)), min_size=1, max_size=5)


@pytest.mark.parametrize("tokens", [1, 512, 2048, 8192, 16384, 131072])
def test_a_step_of_any_size_has_at_most_64_shapes(tokens: int) -> None:
    shapes = buckets_for(tokens).shapes()
    assert len(set(shapes)) == len(shapes) <= 64


@pytest.mark.parametrize("tokens", [1, 2048, 8192, 16384])
def test_a_whole_step_and_the_longest_rest_fit_one_square(tokens: int) -> None:
    buckets = buckets_for(tokens)
    assert buckets.squares[-1] >= min(tokens + buckets.pieces[-1] - 1, 16384)
    assert all(size % 128 == 0 for size in (*buckets.squares, *buckets.chunks, *buckets.pieces))


def test_padding_of_long_prompts_is_small() -> None:
    buckets = buckets_for(16384)
    for length in range(2048, 16385, 61):
        (part,) = parts_of([length], [length], buckets)
        assert length <= part.square <= length * 1.25 + 1


@given(rows)
def test_the_parts_of_a_row_follow_one_another_and_see_all_that_is_before(
    drawn: list[tuple[int, int]],
) -> None:
    counts = [count for count, _ in drawn]
    totals = [count + past for count, past in drawn]
    parts = parts_of(counts, totals, SMALL)
    start = 0
    for part in parts:
        assert part.start == start
        start += part.count
        assert part.rest + part.count <= part.square
        assert sum(part.pieces) + part.rest + part.count == part.stop
        assert not part.pieces or part.count <= part.chunk
    assert start == sum(counts)
    for row, own in itertools.groupby(parts, key=lambda part: part.row):
        assert list(own)[-1].stop == totals[row]


@given(rows)
def test_every_call_has_a_listed_shape_and_fits_the_scratch_memory(
    drawn: list[tuple[int, int]],
) -> None:
    counts = [count for count, _ in drawn]
    totals = [count + past for count, past in drawn]
    shapes = set(SMALL.shapes())
    for call in grouped(parts_of(counts, totals, SMALL), SMALL):
        if isinstance(call, Group):
            assert (call.rows, call.square, call.square, True) in shapes
            continue
        assert (1, call.square, call.square, True) in shapes
        assert {(1, call.chunk, piece, False) for piece in call.pieces} <= shapes
        assert max(call.square, call.rest + call.chunk, *call.pieces, 0) <= SMALL.room


def test_neighbours_of_one_exact_length_are_computed_together() -> None:
    counts = [6, 6, 6, 5, 8, 8]
    calls = grouped(parts_of(counts, counts, SMALL), SMALL)
    assert calls[:2] == [Group(0, 2, 6), Group(12, 1, 6)]
    assert isinstance(calls[2], Part) and calls[2].square == 6
    assert calls[3:] == [Group(23, 1, 8), Group(31, 1, 8)]  # too long to be worthwhile


def test_a_row_longer_than_the_longest_square_is_cut() -> None:
    first, second = parts_of([24], [24], SMALL)
    assert (first.count, first.pieces) == (16, ())
    assert (second.count, second.pieces, second.square) == (8, (8, 8), 8)


def test_short_rows_and_rows_that_would_be_mostly_padding_are_not_wanted() -> None:
    buckets = buckets_for(16384)
    assert not buckets.worthwhile(1000, 1000)
    assert buckets.worthwhile(2048, 2048)
    assert buckets.worthwhile(16384, 32768)
    assert LEAST < 300 * 65536 and not buckets.worthwhile(300, 65536)
    assert buckets.worthwhile(2048, 65536)


def test_wanted_rows_compute_little_more_than_they_need() -> None:
    buckets = buckets_for(8192)
    for count, past in itertools.product(range(256, 8193, 331), range(0, 70000, 3001)):
        if buckets.worthwhile(count, count + past):
            needed = count * past + count * (count + 1) // 2
            work = sum(part.work for part in parts_of([count], [count + past], buckets))
            assert work <= 1.35 * needed


@pytest.mark.parametrize(
    ("squares", "chunks", "pieces", "named"),
    [
        ((), (8,), (4,), "squares=()"),
        ((8, 4), (8,), (4,), "squares=(8, 4)"),
        ((4, 8), (8,), (4, 8), "pieces=(4, 8)"),
        ((4, 8), (4,), (4,), "chunks=(4,)"),
        ((4, 8), (8,), (16,), "squares=(4, 8)"),
    ],
)
def test_sizes_that_do_not_fit_together_are_refused(
    squares: tuple[int, ...], chunks: tuple[int, ...], pieces: tuple[int, ...], named: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Buckets(squares, chunks, pieces)
    assert named in str(caught.value)
