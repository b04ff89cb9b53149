"""Codes and scales in plain torch: e4m3 has 3 bits of mantissa and reaches 448.

A value is rounded to at most 2^-4 of itself or, below 2^-6 times its scale, to 2^-10 times it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

__all__ = ["CODES", "LARGEST", "decoded_rows", "round_blocks", "round_rows", "row_tiles"]

CODES = torch.float8_e4m3fn
LARGEST = 448.0
SMALLEST_PEAK = 1e-30
"""Peaks are taken to be at least this, so that zeros have a scale too."""
TILE_ELEMENTS = 1 << 24
"""Of what is widened at once."""


def row_tiles(rows: int, inputs: int) -> Iterator[tuple[int, int]]:
    """``(start, stop)`` of pieces of at most `TILE_ELEMENTS` elements."""
    step = max(TILE_ELEMENTS // max(inputs, 1), 1)
    for start in range(0, rows, step):
        yield start, min(start + step, rows)


def round_rows(weight: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
    """``weight [N, K] -> codes e4m3 [N, K], scales float32 [N]`` with scale = largest / 448."""
    for start, stop in row_tiles(*weight.shape):
        wide = weight[start:stop].float()
        peak = wide.abs().amax(1).clamp_(min=SMALLEST_PEAK)
        scales[start:stop] = peak / LARGEST
        codes[start:stop] = _rounded(wide, (LARGEST / peak)[:, None])


def round_blocks(
    weight: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, block: tuple[int, int]
) -> None:
    """``weight [N, K] -> codes e4m3 [N, K], scales float32 [N / block[0], K / block[1]]``, both
    quotients rounded up."""
    rows, inputs = weight.shape
    for index, start in enumerate(range(0, rows, block[0])):
        wide = weight[start : start + block[0]].float()
        padded = torch.nn.functional.pad(wide.abs().amax(0), (0, -inputs % block[1]))
        peak = padded.view(-1, block[1]).amax(1).clamp_(min=SMALLEST_PEAK)
        scales[index] = peak / LARGEST
        factor = (LARGEST / peak).repeat_interleave(block[1])[:inputs]
        codes[start : start + block[0]] = _rounded(wide, factor)


def _rounded(wide: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return (wide * factor).clamp_(-LARGEST, LARGEST).to(CODES)


def decoded_rows(params: Mapping[str, Any], rows: Any, group: int) -> torch.Tensor:
    """``float32 [rows, K]``: rows of a weight as the format defines them.

    `rows` is a slice or ids; `group` the inputs that share a scale, 0 if all do.
    """
    codes = params["weight"]
    wide = _picked(codes, rows).float()
    if not group:
        return wide.mul_(params["scale"][rows][:, None])
    scales = params["scale"][params["block_of_row"][rows].long()]
    return wide.mul_(scales.repeat_interleave(group, 1)[:, : codes.shape[1]])


def _picked(codes: torch.Tensor, rows: Any) -> torch.Tensor:
    """Rows by slice, or by ids: not every device gathers 8-bit floats, all gather bytes."""
    if isinstance(rows, slice):
        return codes[rows]
    return codes.view(torch.uint8)[rows].view(CODES)
