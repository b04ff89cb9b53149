"""Simple quantisers for the block types of `unpack`. For tests.

Every sub-block is fitted to its own range; scales are rounded first and codes chosen for the
rounded ones. Nothing is searched for, so errors are somewhat larger than those of a converter.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import torch

from pegboard_quant_gguf.types import TYPES_BY_NAME
from pegboard_quant_gguf.unpack import LAYOUTS, Packed

__all__ = ["quantise_blocks"]

_SUB_BLOCKS = MappingProxyType(
    {"Q2_K": 16, "Q3_K": 16, "Q4_K": 8, "Q5_K": 8, "Q6_K": 16, "IQ4_XS": 8}
)


def quantise_blocks(value: torch.Tensor, stored_type: str) -> torch.Tensor:
    """Round ``float [..., columns]`` to blocks of one of `LAYOUTS`: ``uint8 [rows, row bytes]``."""
    kind, layout = TYPES_BY_NAME[stored_type], LAYOUTS[stored_type]
    count = _SUB_BLOCKS.get(stored_type, 1)
    parts = value.float().reshape(-1, count, kind.block_size // count)
    levels = 1 << (layout.low.bits + (layout.high.bits if layout.high else 0))
    blocks = torch.zeros(parts.shape[0], kind.block_bytes, dtype=torch.uint8)
    if stored_type in ("Q5_1", "Q2_K", "Q4_K", "Q5_K"):
        low = parts.amin(2) if stored_type == "Q5_1" else parts.amin(2).clamp(max=0)
        _HEADS[stored_type](blocks, (parts.amax(2) - low) / (levels - 1), low)
    else:
        reach = 113 if layout.values else layout.zero - 1
        peak = parts.abs().amax(2)
        _HEADS[stored_type](blocks, peak / reach, peak)
    scale, offset = layout.scales(blocks.unsqueeze(-1))
    wanted = parts if offset is None else parts - offset
    codes = torch.where(scale == 0, 0, wanted / scale)
    _write_codes(blocks, stored_type, codes.flatten(1), levels)
    return blocks.view(value.shape[:-1].numel(), -1)


def _write_codes(blocks: torch.Tensor, stored_type: str, wanted: torch.Tensor, levels: int) -> None:
    layout = LAYOUTS[stored_type]
    if layout.values:
        table = torch.tensor(layout.values, dtype=torch.float32)
        codes = (wanted.unsqueeze(-1) - table).abs().argmin(-1)
    else:
        codes = (wanted.round() + layout.zero).clamp(0, levels - 1)
    small = codes.to(torch.uint8)
    _write_area(blocks, layout.low, small & (1 << layout.low.bits) - 1)
    if layout.high:
        _write_area(blocks, layout.high, small >> layout.low.bits)


def _write_area(blocks: torch.Tensor, area: Packed, fields: torch.Tensor) -> None:
    blocks[:, area.start : area.stop] = _packed(fields, area.span, area.bits)


def _packed(fields: torch.Tensor, span: int, bits: int) -> torch.Tensor:
    """The inverse of reading: ``uint8 [n, fields] -> uint8 [n, fields * bits / 8]``."""
    groups = fields.unflatten(1, (-1, 8 // bits, span))
    places = torch.arange(0, 8, bits, dtype=torch.uint8).unsqueeze(1)
    moved: torch.Tensor = groups << places
    return moved.sum(2, dtype=torch.uint8).flatten(1)


def _write_half(blocks: torch.Tensor, start: int, value: torch.Tensor) -> None:
    blocks[:, start : start + 2] = value.half().reshape(-1, 1).view(torch.uint8)


def _shared(blocks: torch.Tensor, start: int, value: torch.Tensor, most: int) -> torch.Tensor:
    """Write the half-precision unit of ``value [n, sub-blocks]`` and return its codes, 0 to
    `most`."""
    unit = value.abs().amax(1, keepdim=True) / most
    _write_half(blocks, start, unit)
    unit = unit.half().float()
    codes = torch.where(unit == 0, 0, value / unit)
    return codes.round().clamp(-most - 1, most).to(torch.int8).view(torch.uint8)


def _head_5_0(blocks: torch.Tensor, scale: torch.Tensor, low: torch.Tensor) -> None:
    _write_half(blocks, 0, scale)


def _head_5_1(blocks: torch.Tensor, scale: torch.Tensor, low: torch.Tensor) -> None:
    _write_half(blocks, 0, scale)
    _write_half(blocks, 2, low)


def _head_2_k(blocks: torch.Tensor, scale: torch.Tensor, low: torch.Tensor) -> None:
    blocks[:, :16] = _shared(blocks, 80, scale, 15) | _shared(blocks, 82, -low, 15) << 4


def _head_3_k(blocks: torch.Tensor, scale: torch.Tensor, low: torch.Tensor) -> None:
    codes = _shared(blocks, 108, scale, 31) + 32
    blocks[:, 96:104] = _packed(codes & 15, 8, 4)
    blocks[:, 104:108] = _packed(codes >> 4, 4, 2)


def _head_4_k(blocks: torch.Tensor, scale: torch.Tensor, low: torch.Tensor) -> None:
    scales, minima = _shared(blocks, 0, scale, 63), _shared(blocks, 2, -low, 63)
    blocks[:, 4:8] = scales[:, :4] | scales[:, 4:] >> 4 << 6
    blocks[:, 8:12] = minima[:, :4] | minima[:, 4:] >> 4 << 6
    blocks[:, 12:16] = scales[:, 4:] & 15 | minima[:, 4:] << 4


def _head_6_k(blocks: torch.Tensor, scale: torch.Tensor, low: torch.Tensor) -> None:
    blocks[:, 192:208] = _shared(blocks, 208, scale, 127)


def _head_iq4_xs(blocks: torch.Tensor, scale: torch.Tensor, low: torch.Tensor) -> None:
    codes = _shared(blocks, 0, scale, 31) + 32
    blocks[:, 4:8] = _packed(codes & 15, 1, 4)
    blocks[:, 2:4] = _packed(codes >> 4, 1, 2)


_HEADS: MappingProxyType[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]] = (
    MappingProxyType(
        {
            "Q5_0": _head_5_0,
            "Q5_1": _head_5_1,
            "Q2_K": _head_2_k,
            "Q3_K": _head_3_k,
            "Q4_K": _head_4_k,
            "Q5_K": _head_4_k,
            "Q6_K": _head_6_k,
            "IQ4_NL": _head_5_0,
            "IQ4_XS": _head_iq4_xs,
        }
    )
)
# Each writes scales and lows ``[n, sub-blocks]`` into the blocks, rounded to what the type holds.
