"""The layouts of the 5-bit, K and IQ4 block types as a table, and one function that reads them all.

Blocks come as ``uint8 [n, block bytes, width]``: `width` neighbouring outputs side by side, so that
the same code serves a tile of transposed weights (long passes over the innermost axis) and plain
rows (``width`` 1).

Every element is ``scale * code + low`` or ``scale * value[code]``. Codes are fields of a few bits.
A packed area is cut into groups of `span` bytes; bits ``k * bits ...`` of byte j of group g belong
to element ``(g * 8 / bits + k) * span + j``. Some types keep further, higher bits of each code in a
second such area:

====== ======================================================== =============== ====================
type   block bytes                                              code            per sub-block
====== ======================================================== =============== ====================
Q5_0   d(2) high(4) low(16)                                     5 bits - 16     d
Q5_1   d(2) m(2) high(4) low(16)                                5 bits          d, + m
Q2_K   scales(16) low(64) d(2) dmin(2)                          2 bits          16: d * 4, -dmin * 4
Q3_K   high(32) low(64) scales(12) d(2)                         3 bits - 4      16: d * (6 - 32)
Q4_K   d(2) dmin(2) scales(12) low(128)                         4 bits          32: d * 6, -dmin * 6
Q5_K   d(2) dmin(2) scales(12) high(32) low(128)                5 bits          32: d * 6, -dmin * 6
Q6_K   low(128) high(64) scales(16, int8) d(2)                  6 bits - 32     16: d * int8
IQ4_NL d(2) low(16)                                             value[4 bits]   d
IQ4_XS d(2) scales(6) low(128)                                  value[4 bits]   32: d * (6 - 32)
====== ======================================================== =============== ====================

(Last column: size of the sub-block, then its scale and low, a number standing for so many bits.)
Products of a half-precision number and two small integers have at most 24 significant bits, so only
the last addition rounds, and the order of evaluation cannot matter.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import attrs
import torch

__all__ = ["LAYOUTS", "Layout", "unpack"]

Scales = Callable[[torch.Tensor], "tuple[torch.Tensor, torch.Tensor | None]"]
"""Blocks to ``float32 [n, sub-blocks, width]``: scale, and low or None."""


@attrs.frozen
class Packed:
    """An area of packed fields in a block."""

    start: int
    stop: int
    span: int
    bits: int


@attrs.frozen
class Layout:
    """How the elements of one block type are found."""

    low: Packed
    """The lower bits of the codes, or all of them."""
    scales: Scales
    high: Packed | None = None
    """The upper bits."""
    zero: int = 0
    """Subtracted from every code."""
    values: tuple[int, ...] | None = None
    """What codes stand for, if not for themselves."""


def unpack(
    stored_type: str, blocks: torch.Tensor, out: torch.Tensor, scratch: torch.Tensor | None = None
) -> None:
    """Write the values of ``blocks uint8 [n, block bytes, width]`` to ``out float32 [n, block size,
    width]``, bit for bit those of the format.

    `out` must be contiguous. `scratch` is memory for at least ``uint8 [2 * elements]``; one that is
    used again spares the operating system's work of giving out fresh pages.
    """
    layout = LAYOUTS[stored_type]
    if scratch is None:
        scratch = blocks.new_empty(2 * out.numel())
    codes, upper = scratch[: 2 * out.numel()].view(2, *out.shape).unbind()
    _read_area(blocks, layout.low, 0, codes)
    if layout.high is not None:
        _read_area(blocks, layout.high, layout.low.bits, upper)
        codes |= upper
    if layout.values is not None:
        table = torch.tensor(layout.values, dtype=torch.float32, device=blocks.device)
        torch.index_select(table, 0, codes.flatten().int(), out=out.view(-1))
    else:
        # Bytes wrap around, which is two's complement.
        out.copy_(codes.sub_(layout.zero).view(torch.int8) if layout.zero else codes)
    scale, low = layout.scales(blocks)
    parts = out.unflatten(1, (scale.shape[1], -1))
    if low is None:
        parts.mul_(scale.unsqueeze(2))
    else:
        torch.addcmul(low.unsqueeze(2), parts, scale.unsqueeze(2), out=parts)


def _read_area(blocks: torch.Tensor, area: Packed, place: int, out: torch.Tensor) -> None:
    _read_fields(blocks[:, area.start : area.stop], area.span, area.bits, place, out)


def _fields(packed: torch.Tensor, span: int, bits: int) -> torch.Tensor:
    """Fields of ``packed uint8 [n, bytes, width]`` as ``uint8 [n, bytes * 8 / bits, width]``."""
    size = packed.shape[1] * 8 // bits
    fields = packed.new_empty(packed.shape[0], size, packed.shape[2])
    _read_fields(packed, span, bits, 0, fields)
    return fields


def _read_fields(packed: torch.Tensor, span: int, bits: int, place: int, out: torch.Tensor) -> None:
    """Write the fields of ``packed uint8 [n, bytes, width]``, moved up by `place` bits, in the
    order of elements to ``out uint8 [n, bytes * 8 / bits, width]``."""
    groups = packed.unflatten(1, (-1, span))
    count, mask = 8 // bits, ((1 << bits) - 1) << place
    fields = out.unflatten(1, (groups.shape[1], count, span))
    for number in range(count):
        field, shift = fields[:, :, number], number * bits - place
        if shift == 0:
            torch.bitwise_and(groups, mask, out=field)
            continue
        move = torch.bitwise_right_shift if shift > 0 else torch.bitwise_left_shift
        move(groups, abs(shift), out=field)
        field &= mask


def _half(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """The half-precision number at byte `start` as ``float32 [n, 1, width]``."""
    wide = blocks[:, start : start + 2].to(torch.int16)
    return (wide[:, :1] | wide[:, 1:] << 8).view(torch.float16).float()


def _one_scale(blocks: torch.Tensor) -> tuple[torch.Tensor, None]:
    return _half(blocks, 0), None


def _one_scale_and_low(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return _half(blocks, 0), _half(blocks, 2)


def _scales_q2_k(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    packed = blocks[:, :16]
    return _half(blocks, 80) * (packed & 15), -(_half(blocks, 82) * (packed >> 4))


def _scales_q3_k(blocks: torch.Tensor) -> tuple[torch.Tensor, None]:
    codes = _fields(blocks[:, 96:104], 8, 4) | _fields(blocks[:, 104:108], 4, 2) << 4
    return _half(blocks, 108) * (codes.float() - 32), None


def _scales_q4_k(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight scales and eight minima of 6 bits in 12 bytes.

    Scales 0 to 3 lie in the low 6 bits of bytes 0 to 3, minima 0 to 3 in those of bytes 4 to 7.
    Scales and minima 4 to 7 have their low 4 bits in bytes 8 to 11 and their high 2 bits above the
    scales and minima 0 to 3.
    """
    first, second, third = blocks[:, 4:16].unflatten(1, (3, 4)).unbind(1)
    scale = torch.cat((first & 63, third & 15 | first >> 2 & 48), 1)
    minimum = torch.cat((second & 63, third >> 4 | second >> 2 & 48), 1)
    return _half(blocks, 0) * scale, -(_half(blocks, 2) * minimum)


def _scales_q6_k(blocks: torch.Tensor) -> tuple[torch.Tensor, None]:
    return _half(blocks, 208) * blocks[:, 192:208].view(torch.int8), None


def _scales_iq4_xs(blocks: torch.Tensor) -> tuple[torch.Tensor, None]:
    codes = _fields(blocks[:, 4:8], 1, 4) | _fields(blocks[:, 2:4], 1, 2) << 4
    return _half(blocks, 0) * (codes.float() - 32), None


_IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# The 16 levels of the non-linear 4-bit types, from the format's definition.

LAYOUTS = MappingProxyType(
    {
        "Q5_0": Layout(Packed(6, 22, 16, 4), _one_scale, high=Packed(2, 6, 1, 1), zero=16),
        "Q5_1": Layout(Packed(8, 24, 16, 4), _one_scale_and_low, high=Packed(4, 8, 1, 1)),
        "Q2_K": Layout(Packed(16, 80, 32, 2), _scales_q2_k),
        "Q3_K": Layout(Packed(32, 96, 32, 2), _scales_q3_k, high=Packed(0, 32, 32, 1), zero=4),
        "Q4_K": Layout(Packed(16, 144, 32, 4), _scales_q4_k),
        "Q5_K": Layout(Packed(48, 176, 32, 4), _scales_q4_k, high=Packed(16, 48, 32, 1)),
        "Q6_K": Layout(Packed(0, 128, 64, 4), _scales_q6_k, high=Packed(128, 192, 32, 2), zero=32),
        "IQ4_NL": Layout(Packed(2, 18, 16, 4), _one_scale, values=_IQ4_VALUES),
        "IQ4_XS": Layout(Packed(8, 136, 16, 4), _scales_iq4_xs, values=_IQ4_VALUES),
    }
)
"""The layouts of the table above."""
