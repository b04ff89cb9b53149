"""Which tiles the products use, by the shape of the weight and the number of rows: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

__all__ = [
    "DESCRIBED_ROWS",
    "EXPERT_TILES",
    "FEW_PAIRS",
    "FEW_ROWS",
    "GATE_ROWS",
    "GATE_TILES",
    "OVERLAP_ROWS",
    "SORT_PAIRS",
    "TABLE_ROWS",
    "TILES",
    "ExpertTile",
    "GateTile",
    "Tile",
    "expert_tile",
    "fitted",
    "gate_tile",
    "tile_for",
]

OVERLAP_ROWS = 0
"""Most rows of a step whose kernels are launched while the one before still runs: each waits where
it needs results, and fetches weights before. Only among our own kernels, on capability 9.0 and
later. On an H200 it loses in whole steps (8B, one row: 4.78 ms against 4.18), since kernels that
wait keep others' programs from starting."""

FEW_ROWS = 16
"""Most rows for which a product of our own is worth it for any shape."""

DESCRIBED_ROWS = 32
"""Most rows for which the copy engine's product of a wide weight was ahead for each shape tried."""

TABLE_ROWS = 256
"""Most rows for which one can be, where the table has an entry."""


class Tile(NamedTuple):
    """How a product ``[M, K] x [N, K]`` is cut.

    ``vector``: one row, products by element; ``matrix``: the matrix units, rows padded to a power
    of two, at least 16; ``described``: those, with operands that the copy engine brings, not split;
    ``library``: not our own.
    """

    kind: Literal["vector", "matrix", "described", "library"]
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


TILES: Mapping[tuple[int, int], Mapping[int, Tile]] = MappingProxyType(
    {
        (4096, 6144): {
            1: Tile("vector", 1, 2048, 1, 2, 1),
            16: Tile("matrix", 64, 256, 1, 4, 4, True),
            32: Tile("described", 64, 256, 1, 4, 4),
            64: Tile("described", 64, 128, 1, 4, 5),
        },
        (4096, 4096): {
            1: Tile("vector", 1, 2048, 1, 2, 1),
            16: Tile("matrix", 64, 256, 1, 4, 4, True),
            32: Tile("described", 64, 256, 1, 4, 4),
        },
        (4096, 28672): {
            1: Tile("vector", 1, 2048, 1, 2, 1),
            4: Tile("matrix", 64, 128, 1, 4, 4, True),
            8: Tile("matrix", 128, 128, 1, 4, 4, True),
            16: Tile("matrix", 64, 128, 1, 4, 4, True),
            32: Tile("described", 64, 128, 1, 4, 4),
            64: Tile("described", 128, 64, 1, 8, 3),
            96: Tile("library"),
            128: Tile("described", 128, 64, 1, 8, 3),
        },
        (14336, 4096): {
            1: Tile("vector", 16, 512, 1, 8, 3),
            8: Tile("matrix", 64, 128, 4, 4, 4, True),
            16: Tile("library"),
            32: Tile("described", 64, 128, 1, 4, 6),
            64: Tile("described", 64, 128, 1, 4, 6),
        },
        (4096, 128256): {
            1: Tile("vector", 1, 2048, 1, 2, 1),
            16: Tile("matrix", 64, 128, 1, 4, 4, True),
            32: Tile("described", 64, 128, 1, 4, 3),
            64: Tile("described", 128, 128, 1, 4, 4),
            192: Tile("library"),
            256: Tile("described", 128, 64, 1, 8, 4),
        },
        (1024, 4096): {
            1: Tile("vector", 2, 1024, 1, 4, 1),
            16: Tile("matrix", 32, 128, 1, 4, 5),
            32: Tile("described", 64, 256, 1, 4, 4),
            64: Tile("described", 64, 128, 1, 4, 6),
        },
        (2048, 1024): {
            1: Tile("vector", 2, 1024, 1, 4, 1),
            16: Tile("matrix", 64, 128, 4, 4, 4, True),
        },
        (1024, 6144): {
            1: Tile("vector", 2, 1024, 1, 4, 1),
            16: Tile("matrix", 64, 256, 1, 4, 4, True),
            32: Tile("described", 64, 256, 1, 4, 4),
            64: Tile("described", 64, 128, 1, 4, 5),
        },
        (3072, 1024): {
            1: Tile("vector", 4, 2048, 1, 8, 1),
            16: Tile("matrix", 32, 128, 4, 4, 4),
        },
        (1024, 151936): {
            1: Tile("vector", 2, 1024, 1, 2, 1),
            2: Tile("matrix", 64, 128, 1, 4, 4),
            16: Tile("matrix", 64, 128, 1, 4, 4, True),
            64: Tile("described", 64, 128, 1, 4, 3),
        },
        (2048, 5120): {
            1: Tile("vector", 1, 2048, 1, 2, 1),
            16: Tile("matrix", 64, 256, 1, 4, 4, True),
            32: Tile("described", 64, 256, 1, 4, 4),
            64: Tile("described", 64, 128, 1, 4, 6),
        },
        (4096, 2048): {
            1: Tile("vector", 1, 2048, 1, 2, 1),
            32: Tile("matrix", 64, 128, 4, 4, 4, True),
        },
        (2048, 128): {
            1: Tile("vector", 2, 1024, 1, 4, 1),
            16: Tile("matrix", 64, 128, 4, 4, 4, True),
        },
        (2048, 151936): {
            1: Tile("vector", 1, 1024, 1, 1, 1),
            16: Tile("matrix", 64, 128, 1, 4, 4, True),
            32: Tile("described", 64, 128, 1, 4, 3),
            64: Tile("described", 128, 64, 1, 4, 3),
        },
    }
)
"""Measured best by ``(K, N)`` and most rows."""


def tile_for(inputs: int, outputs: int, rows: int) -> Tile:
    """The entry of the table for the least number of rows that is enough, else a rule."""
    for most, tile in TILES.get((inputs, outputs), {}).items():
        if rows <= most:
            return tile
    if FEW_ROWS < rows <= DESCRIBED_ROWS and inputs >= 1024 and outputs >= 4096:
        return Tile("described", 64, 128, 1, 4, 4)
    if rows > FEW_ROWS:
        return Tile("library")
    if rows == 1:
        return Tile("vector", 1, 2048, 1, 2) if inputs >= 2048 else Tile("vector", 2, 1024)
    splits = 1 if outputs >= 4096 else 4
    return Tile("matrix", 64, 128, splits, 4, 4, swapped=True)


GATE_ROWS = 256
"""Most rows for which a router's product is our own, its sums added up where experts are chosen."""


class GateTile(NamedTuple):
    """How the product of a router is cut."""

    rows: int
    columns: int
    depth: int
    """Elements of the inner axis that are held at once."""
    splits: int
    """Programs that share the inner axis."""
    warps: int
    stages: int


GATE_TILES: Mapping[int, GateTile] = MappingProxyType(
    {
        16: GateTile(16, 64, 128, 16, 4, 2),
        32: GateTile(32, 64, 128, 16, 4, 2),
        128: GateTile(32, 64, 128, 16, 4, 2),
        1 << 30: GateTile(64, 64, 128, 8, 4, 2),
    }
)
"""By most rows."""


def gate_tile(rows: int) -> GateTile:
    """The tile for so many rows."""
    return next(tile for most, tile in GATE_TILES.items() if rows <= most)


SHALLOWEST = 32
"""Least depth of a product of the matrix units."""

FEW_PAIRS = 32
"""Pairs of token and expert up to which each is multiplied by itself, by element."""

SORT_PAIRS = 8192
"""Pairs up to which each expert's program looks through all of them, in one launch."""


class ExpertTile(NamedTuple):
    """How the products of a mixture's experts are cut."""

    rows: int
    """Rows of a block; 1 where each pair is multiplied by itself."""
    up: int
    """Columns of the gated product, each a row of the gate and a row of up."""
    down: int
    """Columns of the product back."""
    depth: int
    """Elements of the inner axis that are held at once."""
    warps: int
    stages: int
    described: bool = False
    """The copy engine brings weights, where they allow it (see `kernels.described`)."""


EXPERT_TILES: Mapping[int, ExpertTile] = MappingProxyType(
    {
        8: ExpertTile(16, 32, 64, 128, 4, 4),
        16: ExpertTile(32, 64, 128, 64, 4, 4),
        64: ExpertTile(64, 64, 128, 64, 4, 4),
        1 << 30: ExpertTile(128, 128, 256, 64, 8, 4, described=True),
    }
)
"""By most pairs an expert has on average. For Qwen3-30B-A3B on an H200, in µs beside the time that
bytes or products take: 8 tokens 124 (107), 32: 250 (235), 128: 292 (270), 256: 309 (270), 1,024:
371 (270), 4,096: 747 (414), 16,384: 2,430 (1,656)."""


def expert_tile(pairs: int, experts: int) -> ExpertTile:
    """The tile for so many pairs over so many experts."""
    if pairs <= FEW_PAIRS:
        return ExpertTile(1, 2, 4, 1024, 4, 1)
    return next(tile for most, tile in EXPERT_TILES.items() if pairs <= most * experts)


def fitted(tile: ExpertTile, number: int, shared: int) -> ExpertTile:
    """The tile, with fewer loads in flight and then less depth until its operands fit.

    `number` is the bytes of a number, `shared` those that a program may hold in shared memory. The
    tables were measured with 2 bytes and 227 KiB, where all fit.
    """
    while tile.stages > 1 and _held(tile) * number > shared:
        tile = tile._replace(stages=tile.stages - 1)
    while tile.depth > SHALLOWEST and _held(tile) * number > shared:
        tile = tile._replace(depth=tile.depth // 2)
    return tile


def _held(tile: ExpertTile) -> int:
    """Most numbers in flight, of the gated product or of the one back."""
    return tile.stages * tile.depth * (tile.rows + max(2 * tile.up, tile.down))
