"""The rows of a step with one query token, cut into pieces on the device."""

from __future__ import annotations

import attrs
import torch
import triton

from pegboard.api.attention import AttentionContext, AttentionStep
from pegboard.api.kv import KVSpec
from pegboard_attention_triton.kernels.cut import PIECE_FIELDS, cut_rows
from pegboard_attention_triton.launch import BAND_LEAST_ROWS, BAND_LEAST_TOKENS
from pegboard_attention_triton.plan import most_pieces, span_of

__all__ = ["Cutting", "Pieces", "Singles"]


@attrs.frozen
class Cutting:
    """How a group's rows are cut."""

    spec: KVSpec
    block_size: int
    tile: int
    """A piece is a multiple of it."""
    parts: int
    """About so many pieces are made of a step, if its rows are long enough."""
    rows: int
    """Most rows, as a power of two."""

    @classmethod
    def of(cls, ctx: AttentionContext, tile: int, parts: int) -> Cutting:
        rows = triton.next_power_of_2(ctx.max_rows)
        return cls(ctx.group.spec, ctx.group.block_size, tile, parts, rows)


@attrs.frozen(eq=False)
class Pieces:
    """What `kernels.cut.cut_rows` made, or will have made when `decode` reads it."""

    table: torch.Tensor
    """int32 ``[pieces and lines of rows, PIECE_FIELDS]``"""
    count: int
    """Pieces at most."""


class Singles:
    """The rows of a step with one query token, cut as the first layer that asks needs it."""

    def __init__(self, step: AttentionStep, cutting: Cutting) -> None:
        self._step = step
        self._cutting = cutting
        self._cuts: dict[int, Pieces] = {}
        single = sum(count == 1 for count in step.query_lens)
        self._banded = (
            cutting.spec.kind == "full"
            and step.common_prefix_device is not None
            and step.common_prefix >= BAND_LEAST_TOKENS
            and single >= BAND_LEAST_ROWS
        )

    def band_rows(self, most: int) -> int:
        """Rows of a band if there is room for `most`; 0 if there are no bands in this step, not
        even in a replay of it."""
        return most if self._banded and most > 1 else 0

    def pieces(self, band_rows: int) -> Pieces:
        """With this many rows in a band."""
        if band_rows not in self._cuts:
            self._cuts[band_rows] = self._cut(band_rows)
        return self._cuts[band_rows]

    def _cut(self, band_rows: int) -> Pieces:
        step, cutting = self._step, self._cutting
        room = most_pieces(
            step, cutting.spec, cutting.block_size, cutting.tile, cutting.parts, band_rows
        )
        lines = room + len(step.query_lens) if band_rows else room
        table = torch.empty(
            (lines, PIECE_FIELDS), dtype=torch.int32, device=step.kv_lens_device.device
        )
        prefix = step.common_prefix_device if band_rows else step.kv_lens_device
        cut_rows[(1,)](
            step.kv_lens_device,
            step.query_starts,
            prefix,
            table,
            len(step.query_lens),
            room,
            KIND=cutting.spec.kind,
            SPAN=span_of(cutting.spec),
            BLOCK=cutting.block_size,
            TILE=cutting.tile,
            PARTS=cutting.parts,
            ROWS=cutting.rows,
            BAND_ROWS=band_rows,
            LEAST_TOKENS=BAND_LEAST_TOKENS,
            LEAST_ROWS=BAND_LEAST_ROWS,
        )
        return Pieces(table, room)
