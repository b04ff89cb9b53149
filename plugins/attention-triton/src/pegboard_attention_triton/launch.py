"""Launch configurations: plain tables, by width of a head and bytes of an element.

Those of 16-bit heads of 128 are the best of a handful on one H200 (decoding: 36 configurations at
1 to 256 rows; prompts: 9); the others follow from them by their size, unmeasured. Nothing is tuned
while requests are served.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

__all__ = [
    "BANDS",
    "BAND_LEAST_ROWS",
    "BAND_LEAST_TOKENS",
    "FRESH",
    "DecodeLaunch",
    "PrefillLaunch",
    "decode_launch",
    "fresh_launch",
    "prefill_launch",
    "width_of",
]

BANDS = True
"""Whether a beginning that all rows of a step share is read once for a band of rows. On an H200, a
layer of 64 rows with 8,192 tokens in common and 256 of their own takes 91 µs instead of 290."""
BAND_LEAST_TOKENS = 1024
"""Shortest beginning for which there are bands."""
BAND_LEAST_ROWS = 8
"""Fewest rows with one query token for which there are bands."""
FRESH = True
"""Whether rows of which nothing is known before the step read their keys from the step itself. On
an H200, 16 rows of 2,048 tokens reach 428 TFLOP/s instead of 306."""


@attrs.frozen
class DecodeLaunch:
    """How `decode` runs."""

    tile: int
    """Keys per step of the loop; a piece of a row is a multiple of it."""
    warps: int
    stages: int
    """Tiles that are loaded ahead, that which is computed included."""
    lanes: int
    """Pairs of a row and a query head in a band: as many as leave a program without spilled
    registers, and as many programs on a core as there are without bands. Of 8-bit floats at most
    `kernels.decode.PAIRED_GROUP`."""


@attrs.frozen
class PrefillLaunch:
    """How `prefill` runs."""

    pairs: int
    """Pairs of a query token and a head per program."""
    tile: int
    """Keys per step of the loop."""
    warps: int
    stages: int


_DECODE: Mapping[tuple[int, int], DecodeLaunch] = {
    (64, 1): DecodeLaunch(128, 4, 3, 32),
    (128, 1): DecodeLaunch(64, 2, 3, 32),
    (256, 1): DecodeLaunch(32, 4, 3, 32),
    (64, 2): DecodeLaunch(128, 4, 3, 64),
    (128, 2): DecodeLaunch(64, 2, 3, 32),
    (256, 2): DecodeLaunch(32, 4, 3, 32),
    (64, 4): DecodeLaunch(64, 4, 2, 16),
    (128, 4): DecodeLaunch(32, 4, 2, 16),
    (256, 4): DecodeLaunch(16, 4, 2, 16),
}
_PREFILL: Mapping[tuple[int, int], PrefillLaunch] = {
    (64, 1): PrefillLaunch(128, 64, 4, 3),
    (128, 1): PrefillLaunch(128, 64, 4, 3),
    (256, 1): PrefillLaunch(128, 32, 8, 2),
    (64, 2): PrefillLaunch(128, 64, 4, 3),
    (128, 2): PrefillLaunch(128, 64, 8, 3),
    (256, 2): PrefillLaunch(128, 32, 8, 2),
    (64, 4): PrefillLaunch(64, 32, 8, 2),
    (128, 4): PrefillLaunch(32, 32, 8, 2),
    (256, 4): PrefillLaunch(16, 32, 8, 2),
}
"""(padded width of a head, bytes of an element in products) -> launch; 1 byte stands for 8-bit
floats that are widened to 2."""
_FRESH: Mapping[int, PrefillLaunch] = {
    64: PrefillLaunch(128, 128, 8, 3),
    128: PrefillLaunch(128, 64, 8, 3),
    256: PrefillLaunch(128, 64, 8, 2),
}
"""Width of a head -> launch; elements have 2 bytes."""


def width_of(head_size: int) -> int:
    """The power of two, 64 at least, that the tables have for a head size."""
    return max(64, 1 << (head_size - 1).bit_length())


def decode_launch(head_size: int, item_bytes: int) -> DecodeLaunch:
    """For heads of up to 256 elements of 1, 2 or 4 bytes."""
    return _DECODE[width_of(head_size), item_bytes]


def prefill_launch(head_size: int, item_bytes: int) -> PrefillLaunch:
    """For heads of up to 256 elements of 1, 2 or 4 bytes."""
    return _PREFILL[width_of(head_size), item_bytes]


def fresh_launch(head_size: int) -> PrefillLaunch | None:
    """For `kernels.fresh.fresh`, of heads of `head_size`; None if it has no such heads."""
    return _FRESH.get(head_size)
