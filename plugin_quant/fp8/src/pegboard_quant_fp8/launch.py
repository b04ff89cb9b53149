"""How the kernels are launched, by shape. Plain tables: nothing is tried out while serving."""

from __future__ import annotations

import attrs

__all__ = [
    "CODED_ROWS",
    "FEW_ROWS",
    "TENSOR_ROWS",
    "WIDE_OUTPUTS",
    "CodedLaunch",
    "FewLaunch",
    "OneLaunch",
    "coded_launch",
    "few_launch",
    "one_launch",
    "padded_rows",
    "tile_rows",
]

FEW_ROWS = 16
"""Up to so many rows weights are widened to the compute dtype and activations are not rounded."""
CODED_ROWS = 64
"""Up to so many rows, from `FEW_ROWS` on, a kernel of our own multiplies codes."""
TENSOR_ROWS = 256
"""Up to so many rows, from the above on, torch multiplies without scales, which a second kernel
applies. On an H200, the 32 layers of Llama-3.1-8B take 2.75 ms at 128 rows and 3.64 at 256, where
scales per row take 3.21 and 3.73; at 32 rows 2.37, with codes 2.21, with scales per row 3.22."""
WIDE_OUTPUTS = 16384
"""But not for layers of so many outputs and more than `CODED_ROWS` rows: their results are too many
to be read and written once more."""
_PROGRAMS = 132
"""That a launch should have at least, to occupy the largest devices of today."""
_CODED_PROGRAMS = 96
"""Enough of those that multiply codes, whose tiles are dear to share."""


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


@attrs.frozen
class CodedLaunch:
    """Of the kernel in which both sides are codes; `split` as in `FewLaunch`."""

    tile_n: int = 64
    tile_k: int = 256
    split: int = 1
    warps: int = 4
    stages: int = 4


ONE_ROW: dict[tuple[int, int], OneLaunch] = {}
"""By ``(outputs, inputs)``, where the rule is beaten."""
FEW: dict[tuple[int, int], FewLaunch] = {}
"""By ``(outputs, inputs)``, where the rule is beaten."""

CODED: dict[tuple[int, int], dict[int, CodedLaunch]] = {
    (6144, 4096): {32: CodedLaunch(64, 512, 1, 4, 3)},
    (28672, 4096): {32: CodedLaunch(64, 256, 1, 4, 4), 64: CodedLaunch(128, 128, 1, 4, 4)},
}
"""By ``(outputs, inputs)`` and most rows, ascending, where the rule is beaten."""


def one_launch(outputs: int, inputs: int) -> OneLaunch:
    """The launch for one row."""
    found = ONE_ROW.get((outputs, inputs))
    return found or OneLaunch(tile_k=2048 if inputs >= 2048 else 512)


def few_launch(outputs: int, inputs: int) -> FewLaunch:
    """The launch for a few rows."""
    usual = FewLaunch()
    found = FEW.get((outputs, inputs))
    return found or attrs.evolve(usual, split=_split(outputs, inputs, usual.tile_n, usual.tile_k))


def coded_launch(outputs: int, inputs: int, rows: int) -> CodedLaunch:
    """The launch for some dozens of rows. The more of them, the less of the inputs fits beside the
    weights' in shared memory."""
    for most, found in CODED.get((outputs, inputs), {}).items():
        if rows <= most:
            return found
    usual = CodedLaunch() if rows <= 32 else CodedLaunch(tile_k=128, stages=5)
    split = _split(outputs, inputs, usual.tile_n, usual.tile_k, _CODED_PROGRAMS)
    return attrs.evolve(usual, split=split)


def _split(
    outputs: int, inputs: int, tile_n: int, tile_k: int, programs: int = 2 * _PROGRAMS
) -> int:
    """So that there are so many programs, if each then has at least four tiles of inputs."""
    tiles, depth = -(-outputs // tile_n), -(-inputs // tile_k)
    split = 1
    while tiles * split < programs and split < 8 and depth // (2 * split) >= 4:
        split *= 2
    return split


def padded_rows(rows: int) -> int:
    """Rows of the tile that holds `rows` of them: a power of two, at least 16."""
    return max(16, 1 << (rows - 1).bit_length())


def tile_rows(rows: int) -> int:
    """Rows of a tile of the product with block scales."""
    return 64 if rows <= 64 else 128
