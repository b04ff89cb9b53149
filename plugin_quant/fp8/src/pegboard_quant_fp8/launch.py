"""How the kernels are launched, by shape. Plain tables: nothing is tried out while serving."""

from __future__ import annotations

import attrs

__all__ = [
    "FEW_ROWS",
    "FewLaunch",
    "OneLaunch",
    "few_launch",
    "one_launch",
    "padded_rows",
    "tile_rows",
]

FEW_ROWS = 16
"""Up to so many rows weights are widened to the compute dtype and activations are not rounded."""
_PROGRAMS = 132
"""That a launch should have at least, to occupy the largest devices of today."""


@attrs.frozen
class OneLaunch:
    """Of the kernel for one row: a tile's outputs and inputs, warps of a program."""

    tile_n: int = 4
    tile_k: int = 2048
    warps: int = 4


@attrs.frozen
class FewLaunch:
    """Of the kernel for a few rows; `split` programs share the inputs of a tile.

    `wide` puts the weights first in the product, which lets tiles of 64 outputs and more use the
    newer matrix units, but has them read from shared memory two bytes at a time.
    """

    tile_n: int = 32
    tile_k: int = 256
    split: int = 1
    wide: bool = False
    warps: int = 4
    stages: int = 4


ONE_ROW: dict[tuple[int, int], OneLaunch] = {}
"""By ``(outputs, inputs)``, where the rule is beaten."""
FEW: dict[tuple[int, int], FewLaunch] = {}
"""By ``(outputs, inputs)``, where the rule is beaten."""


def one_launch(outputs: int, inputs: int) -> OneLaunch:
    """The launch for one row."""
    found = ONE_ROW.get((outputs, inputs))
    return found or OneLaunch(tile_k=2048 if inputs >= 2048 else 512)


def few_launch(outputs: int, inputs: int) -> FewLaunch:
    """The launch for a few rows: as many programs as occupy the device twice, each with at least
    four tiles of inputs."""
    found = FEW.get((outputs, inputs))
    if found is not None:
        return found
    usual = FewLaunch()
    tiles, depth = -(-outputs // usual.tile_n), -(-inputs // usual.tile_k)
    split = 1
    while tiles * split < 2 * _PROGRAMS and split < 8 and depth // (2 * split) >= 4:
        split *= 2
    return attrs.evolve(usual, split=split)


def padded_rows(rows: int) -> int:
    """Rows of the tile that holds `rows` of them: a power of two, at least 16."""
    return max(16, 1 << (rows - 1).bit_length())


def tile_rows(rows: int) -> int:
    """Rows of a tile of the product with block scales."""
    return 64 if rows <= 64 else 128
