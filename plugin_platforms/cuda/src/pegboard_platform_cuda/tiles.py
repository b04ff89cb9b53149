"""Which tiles the products with few rows use, by the shape of the weight: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

__all__ = ["FEW_ROWS", "TILES", "Tile", "tile_for"]

FEW_ROWS = 16
"""Most rows for which a product of our own is worth it."""


class Tile(NamedTuple):
    """How a product ``[M, K] x [N, K]`` is cut.

    ``vector``: one row, products by element; ``matrix``: the matrix units, rows padded to 16;
    ``library``: not our own.
    """

    kind: Literal["vector", "matrix", "library"]
    outputs: int = 4
    """Columns of the result, rows of the weight, of a program."""
    depth: int = 1024
    """Elements of K that are held at once."""
    splits: int = 1
    """Programs that share the K of a result; their sums are added by a second kernel."""
    warps: int = 4
    stages: int = 1
    """Loads of weights in flight, this one included."""
    swapped: bool = False
    """The weight is the left operand of the matrix units, whose tiles of 64 it can fill."""


TILES: Mapping[tuple[int, int], Mapping[int, Tile]] = MappingProxyType({})
"""Measured best by ``(K, N)`` and most rows."""


def tile_for(inputs: int, outputs: int, rows: int) -> Tile:
    """The entry of the table for the least number of rows that is enough, else a rule."""
    for most, tile in TILES.get((inputs, outputs), {}).items():
        if rows <= most:
            return tile
    if rows > FEW_ROWS:
        return Tile("library")
    if rows == 1:
        return Tile("vector", outputs=4 if outputs >= 2048 else 2, depth=min(1024, inputs))
    wide = 64 if outputs >= 16384 else 32 if outputs >= 4096 else 16
    return Tile("matrix", outputs=wide, depth=256 if wide < 64 else 128, stages=4)
