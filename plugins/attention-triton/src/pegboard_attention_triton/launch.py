"""Launch configurations: plain tables, by width of a head and bytes of an element.

Found by trying a handful of each on one H200; nothing is tuned while requests are served.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

__all__ = ["DecodeLaunch", "PrefillLaunch", "decode_launch", "prefill_launch", "width_of"]


@attrs.frozen
class DecodeLaunch:
    """How `decode` runs."""

    tile: int
    """Keys per step of the loop; a piece of a row is a multiple of it."""
    warps: int
    stages: int
    """Tiles that are loaded ahead, that which is computed included."""


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
    (64, 1): DecodeLaunch(128, 4, 3),
    (128, 1): DecodeLaunch(64, 2, 3),
    (256, 1): DecodeLaunch(32, 4, 3),
    (64, 2): DecodeLaunch(128, 4, 3),
    (128, 2): DecodeLaunch(64, 2, 3),
    (256, 2): DecodeLaunch(32, 4, 3),
    (64, 4): DecodeLaunch(64, 4, 2),
    (128, 4): DecodeLaunch(32, 4, 2),
    (256, 4): DecodeLaunch(16, 4, 2),
}
_PREFILL: Mapping[tuple[int, int], PrefillLaunch] = {
    (64, 1): PrefillLaunch(128, 64, 4, 3),
    (128, 1): PrefillLaunch(128, 64, 8, 3),
    (256, 1): PrefillLaunch(128, 32, 8, 2),
    (64, 2): PrefillLaunch(128, 64, 4, 3),
    (128, 2): PrefillLaunch(128, 64, 8, 3),
    (256, 2): PrefillLaunch(128, 32, 8, 2),
    (64, 4): PrefillLaunch(64, 32, 8, 2),
    (128, 4): PrefillLaunch(32, 32, 8, 2),
    (256, 4): PrefillLaunch(16, 32, 8, 2),
}
"""(padded width of a head, bytes of an element) -> launch. The bytes are those in products; 1
stands for 8-bit floats that are widened to 2."""


def width_of(head_size: int) -> int:
    """The power of two, 64 at least, that the tables have for a head size."""
    return max(64, 1 << (head_size - 1).bit_length())


def decode_launch(head_size: int, item_bytes: int) -> DecodeLaunch:
    """For heads of up to 256 elements of 1, 2 or 4 bytes."""
    return _DECODE[width_of(head_size), item_bytes]


def prefill_launch(head_size: int, item_bytes: int) -> PrefillLaunch:
    """For heads of up to 256 elements of 1, 2 or 4 bytes."""
    return _PREFILL[width_of(head_size), item_bytes]
