"""Cutting rows into calls of few shapes: arithmetic without a device.

cuDNN builds a plan for every shape that it meets, which takes tens to hundreds of milliseconds, so
calls have shapes from a short list. A part of a row (all of it, unless it is very long) becomes

* one *square*: causal attention of a run of tokens to itself. The run ends with the queries of the
  part and is filled up behind them: causality hides what is behind from what is before. Where the
  tokens known earlier do not end at a multiple of the smallest piece, the `rest` of them stands
  before the queries, and the results of the rest are dropped.
* for each *piece* of the tokens before the run: attention of all queries to all its keys. Pieces
  have whole sizes, so nothing is masked.

The softmax of the whole is put together from the log-sum-exp of each call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from pegboard.errors import ConfigError

__all__ = ["Buckets", "Group", "Part", "buckets_for", "grouped", "parts_of"]

STEPS = 8
"""Lengths of squares per octave up to `FINE_BELOW`, half as many beyond: padding costs some 10 % of
a square's products on average."""
FINE_BELOW = 4096
SMALLEST = 2048
"""Shortest square."""
LONGEST = 16384
"""Longest square; longer rows are cut."""
PIECES = (16384, 4096)
SMALLEST_CHUNK = 2048
"""Fewest queries of calls over a piece."""
TOGETHER = 8
"""Rows of one length that are computed in one call: at 2048 tokens one runs at 320 TFLOP/s on an
H200, four at 458, eight at 533."""
TOGETHER_BELOW = 2048
"""Longest rows for which that is worthwhile: longer ones fill a device by themselves."""
WASTE = 1.35
"""Most products computed, relative to those needed, at which cuDNN is still the faster one: its
rate is about 1.6 times that of a kernel that computes only what is needed, less its copies."""
LEAST = 2_000_000
"""Fewest pairs of a query and a key that repay the calls of a row, which cost the host some 50 to
100 µs per layer: those of a prompt of 2000 tokens."""


def _longest_first(
    _: object, field: attrs.Attribute[tuple[int, ...]], value: tuple[int, ...]
) -> None:
    if not value or list(value) != sorted(set(value), reverse=True) or value[-1] < 1:
        raise ConfigError(f"{field.name}={value!r} is not allowed: falling sizes of at least 1")


def _shortest_first(
    _: object, field: attrs.Attribute[tuple[int, ...]], value: tuple[int, ...]
) -> None:
    if not value or list(value) != sorted(set(value)) or value[0] < 1:
        raise ConfigError(f"{field.name}={value!r} is not allowed: rising sizes of at least 1")


@attrs.frozen
class Buckets:
    """The sizes that calls may have, in tokens."""

    squares: tuple[int, ...] = attrs.field(validator=_shortest_first)
    chunks: tuple[int, ...] = attrs.field(validator=_shortest_first)
    """Queries of a call over a piece."""
    pieces: tuple[int, ...] = attrs.field(validator=_longest_first)
    together: int = TOGETHER
    together_below: int = TOGETHER_BELOW

    def __attrs_post_init__(self) -> None:
        if self.squares[-1] < self.pieces[-1]:
            raise ConfigError(
                f"squares={self.squares!r} is not allowed: the last must be at least the last of "
                f"pieces={self.pieces!r}"
            )
        if self.chunks[-1] < self.squares[-1]:
            raise ConfigError(
                f"chunks={self.chunks!r} is not allowed: the last must be at least the last of "
                f"squares={self.squares!r}"
            )

    @property
    def room(self) -> int:
        """Most tokens of queries, keys or values that a call works on."""
        over_pieces = max(self.pieces[-1] + self.chunks[-1], self.pieces[0])
        return max(over_pieces, *(rows * queries for rows, queries, _, _ in self.shapes()))

    def shapes(self) -> list[tuple[int, int, int, bool]]:
        """All calls that there can be: rows, queries, keys, whether causal."""
        single = [(1, size, size, True) for size in self.squares]
        several = [
            (self.together, size, size, True)
            for size in self.squares
            if self.together > 1 and size <= self.together_below
        ]
        past = [(1, chunk, piece, False) for chunk in self.chunks for piece in self.pieces]
        return single + several + past

    def worthwhile(self, count: int, length: int) -> bool:
        """Whether a row of `count` queries, the last of `length` tokens, gains by calls of these
        sizes."""
        needed = count * length - count * (count - 1) // 2
        if needed < LEAST:
            return False
        return sum(part.work for part in parts_of([count], [length], self)) <= WASTE * needed


def buckets_for(max_tokens: int) -> Buckets:
    """Sizes for steps of up to `max_tokens` query tokens: at most 64 shapes.

    A square may hold a rest beside the queries of a whole step.
    """
    longest = min(LONGEST, max_tokens + PIECES[-1] - 1)
    fine, coarse = _sizes(SMALLEST, FINE_BELOW, STEPS), _sizes(FINE_BELOW, LONGEST, STEPS // 2)
    squares = _up_to([*fine, *coarse, LONGEST], longest)
    chunks = [*_sizes(SMALLEST_CHUNK, LONGEST, STEPS // 2), LONGEST]
    return Buckets(squares, _up_to(chunks, squares[-1]), PIECES)


def _sizes(first: int, end: int, steps: int) -> Iterator[int]:
    """From `first` to before `end`, a power of two times it, with `steps` sizes per octave."""
    while first < end:
        yield from range(first, 2 * first, first // steps)
        first *= 2


def _up_to(sizes: Sequence[int], longest: int) -> tuple[int, ...]:
    """The sizes up to the first that holds `longest`."""
    return tuple(
        size for place, size in enumerate(sizes) if not place or sizes[place - 1] < longest
    )


@attrs.frozen
class Part:
    """Queries of one row that share a square."""

    row: int
    start: int
    """First query token in the step."""
    count: int
    """Query tokens."""
    stop: int
    """Tokens of the request up to the last query of the part."""
    rest: int
    """Tokens before the first query that are in the square."""
    square: int
    """Length of the square."""
    pieces: tuple[int, ...]
    """What is before the square, cut: the first piece begins with token 0."""
    chunk: int
    """Queries of the calls over pieces."""

    @property
    def exact(self) -> bool:
        """The square has no place but for the queries."""
        return self.count == self.square

    @property
    def work(self) -> int:
        """Pairs of a query and a key that are computed."""
        return self.square * (self.square + 1) // 2 + self.chunk * sum(self.pieces)


def parts_of(query_lens: Sequence[int], kv_lens: Sequence[int], buckets: Buckets) -> list[Part]:
    """All rows, cut, in the order of the step."""
    parts, start = [], 0
    for row, (count, length) in enumerate(zip(query_lens, kv_lens, strict=True)):
        parts += _row_parts(row, start, count, length, buckets)
        start += count
    return parts


def _row_parts(row: int, start: int, count: int, length: int, buckets: Buckets) -> list[Part]:
    parts = []
    while count:
        part = _first_part(row, start, count, length - count, buckets)
        parts.append(part)
        start, count = start + part.count, count - part.count
    return parts


def _first_part(row: int, start: int, count: int, past: int, buckets: Buckets) -> Part:
    """As many of the `count` queries behind `past` tokens as one square holds."""
    pieces, rest = _pieces(past, buckets.pieces)
    count = min(count, buckets.squares[-1] - rest)
    square = next(size for size in buckets.squares if size >= rest + count)
    chunk = next(size for size in buckets.chunks if size >= count) if pieces else 0
    return Part(row, start, count, past + count, rest, square, pieces, chunk)


def _pieces(past: int, sizes: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """As few pieces as possible, and what is left over."""
    pieces: list[int] = []
    for size in sizes:
        pieces += [size] * (past // size)
        past %= size
    return tuple(pieces), past


@attrs.frozen
class Group:
    """Neighbouring parts that one call computes from the step's own tensors."""

    start: int
    rows: int
    square: int


def grouped(parts: Sequence[Part], buckets: Buckets) -> list[Part | Group]:
    """Join neighbours of one exact length, `Buckets.together` at a time, and single exact parts of
    rows without a past; the other parts stay what they are."""
    joined: list[Part | Group] = []
    place = 0
    while place < len(parts):
        part, size = parts[place], 1
        if part.exact and not part.pieces:
            size = (
                buckets.together if _alike(parts[place : place + buckets.together], buckets) else 1
            )
            joined.append(Group(part.start, size, part.square))
        else:
            joined.append(part)
        place += size
    return joined


def _alike(parts: Sequence[Part], buckets: Buckets) -> bool:
    """`Buckets.together` parts that fit one call."""
    first = parts[0]
    return (
        len(parts) == buckets.together
        and first.square <= buckets.together_below
        and all(p.exact and not p.pieces and p.square == first.square for p in parts)
    )
