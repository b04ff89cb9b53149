"""Products with quantised weights, a tile of outputs at a time, in float32.

Runtime layout: codes, scales and minima lie transposed, outputs innermost, so that every pass over
a tile runs along long contiguous rows (a block has only 32 elements; walking blocks costs several
times more)::

    file   [output][block of 32 inputs][d, m, 16 bytes]
    here   codes uint8 [inputs / 2, outputs]
             row 16 b + j: input 32 b + j in the low half, 32 b + 16 + j in the high half
           scale, low float16 [inputs / 32, outputs]

A tile is ``float32 [inputs, width]``; all rows of a batch use it before the next one is made. The
sizes below are measured. With many rows the product is most of the work and wants wide tiles; with
few rows the passes over the tile are, and a smaller one keeps them closer to the processor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Protocol

import torch
from torch.nn.functional import embedding, linear

from pegboard_quant_gguf.dequant import dequantise_rows, split_blocks

__all__ = [
    "Kernel",
    "NibbleTiles",
    "PlainRows",
    "RawRows",
    "SignedTiles",
    "multiply_into",
    "walk_tiles",
]

TILE_ELEMENTS = 1 << 20
FEW_ROWS_ELEMENTS = 1 << 18
"""Of a tile for at most `FEW_ROWS` rows."""
FEW_ROWS = 64
BLOCK = 32

Params = Mapping[str, torch.Tensor]
Tile = tuple[int, int, torch.Tensor]
"""``(start, stop, memory for float32 [inputs, stop - start])``"""


class Kernel(Protocol):
    """How weights of one stored type are kept and used. Kernels hold no tensors."""

    def prepare(self, raw: torch.Tensor) -> dict[str, torch.Tensor]:
        """Runtime tensors from ``raw``: ``uint8 [outputs, row bytes]``, or ``[outputs, inputs]``
        of a plain type."""
        ...

    def multiply(self, params: Params, x: torch.Tensor, outputs: int) -> torch.Tensor:
        """``x [rows, inputs] @ weight.T -> [rows, outputs]`` in the dtype of `x`; `outputs` is
        the weight's height."""
        ...

    def rows(self, params: Params, ids: torch.Tensor) -> torch.Tensor:
        """Rows `ids` of the weight as ``float32 [n, inputs]``."""
        ...


def tile_width(rows: int, inputs: int, outputs: int, step: int) -> int:
    """Outputs per tile for a batch of `rows`: equal tiles, a multiple of `step` wide, as many as
    the size above asks for."""
    most = min(TILE_ELEMENTS, FEW_ROWS_ELEMENTS) if rows <= FEW_ROWS else TILE_ELEMENTS
    tiles = ceil(inputs * outputs / most)
    return ceil(outputs / tiles / step) * step


def walk_tiles(
    x: torch.Tensor, outputs: int, step: int, dtype: torch.dtype = torch.float32
) -> Iterator[Tile]:
    """Tiles of the weight that ``x [rows, inputs]`` is multiplied with.

    They cover all outputs, one after the other in the same memory; widths are multiples of `step`.
    """
    rows, inputs = x.shape
    width = tile_width(rows, inputs, outputs, step)
    buffer = torch.empty(inputs * min(width, outputs), device=x.device, dtype=dtype)
    for start in range(0, outputs, width):
        stop = min(start + width, outputs)
        yield start, stop, buffer[: inputs * (stop - start)].view(inputs, stop - start)


def multiply_into(out: torch.Tensor, x: torch.Tensor, tile: torch.Tensor) -> None:
    """``out[...] = x @ tile``, without a copy where `out` has the dtype of the product."""
    if out.dtype == x.dtype:
        torch.mm(x, tile, out=out)
    else:
        out.copy_(torch.mm(x, tile))


class _TransposedTiles:
    """What the two transposed layouts share: walking the tiles."""

    def multiply(self, params: Params, x: torch.Tensor, outputs: int) -> torch.Tensor:
        wide, out = x.float(), x.new_empty(x.shape[0], outputs)
        for start, stop, tile in walk_tiles(x, outputs, 16):
            self._fill(params, start, stop, tile)
            multiply_into(out[:, start:stop], wide, tile)
        return out

    def _fill(self, params: Params, start: int, stop: int, tile: torch.Tensor) -> None:
        """Write the float32 values of outputs ``start:stop`` to ``tile [inputs, stop - start]``."""
        raise AssertionError("a layout fills its own tiles")


def _outputs_last(codes: torch.Tensor) -> torch.Tensor:
    """``[outputs, blocks, n] -> [blocks * n, outputs]`` in one copy (an embedding may be most of
    the file)."""
    return codes.permute(1, 2, 0).contiguous().flatten(0, 1)


def _stretch(per_block: torch.Tensor) -> torch.Tensor:
    """``[blocks, n] -> float32 [blocks, 1, n]``, to be broadcast over the inputs of a block."""
    return per_block.float().unsqueeze(1)


class NibbleTiles(_TransposedTiles):
    """Q4_0 and Q4_1: ``value = scale * code + low`` with ``low = -8 * scale`` for Q4_0."""

    def __init__(self, stored_type: str) -> None:
        self._type = stored_type

    def prepare(self, raw: torch.Tensor) -> dict[str, torch.Tensor]:
        blocks = raw.view(raw.shape[0], -1, 20 if self._type == "Q4_1" else 18)
        scale, low, codes = split_blocks(blocks, self._type)
        params = {"codes": _outputs_last(codes), "scale": scale.t().contiguous()}
        if low is not None:
            params["low"] = low.t().contiguous()
        return params

    def rows(self, params: Params, ids: torch.Tensor) -> torch.Tensor:
        blocks, count = params["scale"].shape[0], ids.numel()
        columns = {name: value.index_select(1, ids) for name, value in params.items()}
        tile = torch.empty(blocks * BLOCK, count, device=ids.device)
        self._fill(columns, 0, count, tile)
        return tile.t().contiguous()

    def _fill(self, params: Params, start: int, stop: int, tile: torch.Tensor) -> None:
        codes = params["codes"][:, start:stop]
        scale = _stretch(params["scale"][:, start:stop])
        low = _stretch(params["low"][:, start:stop]) if "low" in params else scale * -8.0
        # Apart as bytes first: one conversion then runs over the whole tile.
        apart = codes.new_empty(scale.shape[0], 2, BLOCK // 2, stop - start)
        codes = codes.unflatten(0, (scale.shape[0], BLOCK // 2))
        torch.bitwise_and(codes, 15, out=apart[:, 0])
        torch.bitwise_right_shift(codes, 4, out=apart[:, 1])
        blocks = tile.unflatten(0, (scale.shape[0], BLOCK)).copy_(apart.flatten(1, 2))
        torch.addcmul(low, blocks, scale, out=blocks)


class SignedTiles(_TransposedTiles):
    """Q8_0: ``value = scale * code``; ``codes int8 [inputs, outputs]``."""

    def prepare(self, raw: torch.Tensor) -> dict[str, torch.Tensor]:
        scale, _, codes = split_blocks(raw.view(raw.shape[0], -1, 34), "Q8_0")
        return {"codes": _outputs_last(codes.view(torch.int8)), "scale": scale.t().contiguous()}

    def rows(self, params: Params, ids: torch.Tensor) -> torch.Tensor:
        codes = params["codes"].index_select(1, ids).float()
        codes.unflatten(0, (-1, BLOCK)).mul_(_stretch(params["scale"].index_select(1, ids)))
        return codes.t().contiguous()

    def _fill(self, params: Params, start: int, stop: int, tile: torch.Tensor) -> None:
        tile.copy_(params["codes"][:, start:stop])
        tile.unflatten(0, (-1, BLOCK)).mul_(_stretch(params["scale"][:, start:stop]))


class RawRows:
    """Any block type of `dequant`: rows stay as stored, tiles are dequantised row by row."""

    def __init__(self, stored_type: str) -> None:
        self._type = stored_type

    def prepare(self, raw: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"raw": raw.contiguous()}

    def multiply(self, params: Params, x: torch.Tensor, outputs: int) -> torch.Tensor:
        raw, wide, out = params["raw"], x.float(), x.new_empty(x.shape[0], outputs)
        step = max(16, TILE_ELEMENTS // x.shape[1])
        for start in range(0, outputs, step):
            tile = dequantise_rows(raw[start : start + step], self._type)
            out[:, start : start + step] = linear(wide, tile)
        return out

    def rows(self, params: Params, ids: torch.Tensor) -> torch.Tensor:
        return dequantise_rows(params["raw"].index_select(0, ids), self._type)


class PlainRows:
    """A part stored in a plain type beside quantised ones: an ordinary weight in the compute
    dtype."""

    def prepare(self, raw: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"weight": raw.contiguous()}

    def multiply(self, params: Params, x: torch.Tensor, outputs: int) -> torch.Tensor:
        weight = params["weight"]
        return linear(x.to(weight.dtype), weight).to(x.dtype)

    def rows(self, params: Params, ids: torch.Tensor) -> torch.Tensor:
        return embedding(ids, params["weight"]).float()
