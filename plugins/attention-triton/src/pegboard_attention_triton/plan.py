"""Cutting a step into work for the kernels.

Rows with one query token are cut into pieces on the device, see `kernels.decode`; what the host
adds, in `pieces`, is how many there can be. Rows with several are cut into tiles here: nothing of a
recorded step depends on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import attrs
import numpy as np
import numpy.typing as npt
import torch

from pegboard.api.attention import AttentionStep
from pegboard.api.kv import ChunkedLocalSpec, KVSpec, SlidingWindowSpec
from pegboard.nn.transit import send

if TYPE_CHECKING:
    from pegboard_attention_triton.pieces import Singles

__all__ = ["Prompts", "StepMetadata", "most_pieces", "most_states", "span_of", "tiles_of"]

Ints = npt.NDArray[np.int32]
Sort = Literal["every", "fresh", "later"]
"""All rows of several query tokens; those of which nothing is known before the step; the others."""


class Prompts:
    """The rows of a step with several query tokens, cut as the first layer that asks needs it."""

    def __init__(self, step: AttentionStep, kv_heads: int, device: torch.device) -> None:
        counts, lengths = np.asarray(step.query_lens), np.asarray(step.kv_lens)
        self._lens = (step.query_lens, step.kv_lens)
        self._kv_heads = kv_heads
        self._device = device
        self._cuts: dict[tuple[int, str], torch.Tensor] = {}
        several, fresh = counts > 1, counts == lengths
        self._rows = {
            sort: np.flatnonzero(chosen)
            for sort, chosen in (
                ("every", several),
                ("fresh", several & fresh),
                ("later", several & ~fresh),
            )
        }

    def has(self, sort: Sort) -> bool:
        """Whether there are such rows."""
        return len(self._rows[sort]) > 0

    def tiles(self, queries: int, sort: Sort) -> torch.Tensor:
        """int32 ``[tiles, TILE_FIELDS]`` on the device, `queries` tokens per tile; there are such
        rows."""
        key = queries, sort
        if key not in self._cuts:
            rows = self._rows[sort]
            host = tiles_of(*self._lens, self._kv_heads, queries, rows)
            (self._cuts[key],) = send(self._device, host)
        return self._cuts[key]


@attrs.frozen(eq=False)
class StepMetadata:
    """What `plan` hands to every layer."""

    block_table: torch.Tensor
    singles: Singles | None
    """The rows that have one query token, if there are any."""
    prompts: Prompts | None
    """The rows that have several, if there are any."""


def span_of(spec: KVSpec) -> int:
    """Tokens of the window or chunk; 1 where everything is seen."""
    if isinstance(spec, SlidingWindowSpec):
        return spec.window
    return spec.chunk if isinstance(spec, ChunkedLocalSpec) else 1


def most_pieces(
    step: AttentionStep, spec: KVSpec, block_size: int, tile: int, parts: int, band_rows: int = 0
) -> int:
    """Bound of the number of pieces, from host values that hold for every replay of the step.

    A row, or a band of `band_rows`, has at most one piece for each `tile` tokens, and, rounded, one
    for each share of the sum of all lengths over `parts`, but at least one.
    """
    single = [
        length for count, length in zip(step.query_lens, step.kv_lens, strict=True) if count == 1
    ]
    longest = max(single, default=0)
    if spec.kind != "full":
        longest = min(longest, span_of(spec) + block_size - 1)
    each = max(-(-longest // tile), 1)
    cut = len(single) + (-(-len(single) // band_rows) if band_rows else 0)
    return min(cut * each, parts + cut)


def most_states(parts: int, band_rows: int, rows: int) -> int:
    """Bound of the number of states that pieces leave behind for a join, for `rows` rows.

    Of rows alone, those in several pieces have more than one part each, so that rounding at most
    doubles `parts`. A piece of a band leaves `band_rows` states; rows in bands have a piece of
    their own and, by rounding, half of one more, and so have bands, for each of their rows.
    """
    return max(2, band_rows) * parts + (2 * rows + band_rows if band_rows else 0)


def tiles_of(
    query_lens: Sequence[int],
    kv_lens: Sequence[int],
    kv_heads: int,
    queries: int,
    rows: npt.NDArray[np.intp],
) -> Ints:
    """``[tiles, TILE_FIELDS]`` of these rows of a step, `queries` tokens per tile.

    Rows with the most work come first. The tiles of one row and key head follow one another, those
    with the most keys first, so that those that run at one time find their keys in the device's
    cache.
    """
    counts, lengths = np.asarray(query_lens, np.int64), np.asarray(kv_lens, np.int64)
    work = counts[rows] * (2 * lengths[rows] - counts[rows])
    rows = rows[np.argsort(-work, kind="stable")]
    starts = np.cumsum(counts) - counts
    parts = [
        _row_tiles(int(row), int(starts[row]), int(counts[row]), int(lengths[row]), queries)
        for row in rows
    ]
    return np.concatenate([_for_heads(part, kv_heads) for part in parts])


def _row_tiles(row: int, start: int, count: int, length: int, queries: int) -> Ints:
    """Tiles of one row for key head 0, the last queries first."""
    first = np.arange(0, count, queries)[::-1]
    tiles = np.zeros((len(first), 5), np.int32)
    tiles[:, 0] = row
    tiles[:, 2] = start + first
    tiles[:, 3] = np.minimum(queries, count - first)
    tiles[:, 4] = length - count + first
    return tiles


def _for_heads(tiles: Ints, kv_heads: int) -> Ints:
    """The same tiles for every key head, head after head."""
    every = np.tile(tiles, (kv_heads, 1))
    every[:, 1] = np.repeat(np.arange(kv_heads), len(tiles))
    return every
