"""Row-wise dequantisation: ``uint8 [rows, row bytes] -> float32 [rows, columns]``, one function per
block type.

Bit for bit the values of the format's definition, with ``d`` and ``m`` the block's half-precision
scale and minimum and ``q`` its integers:

==== ===================== ============ ====================================
type block bytes           elements     value
==== ===================== ============ ====================================
Q8_0 d(2) q(32, int8)      32           d * q
Q4_0 d(2) q(16)            32           d * (q - 8)
Q4_1 d(2) m(2) q(16)       32           d * q + m
==== ===================== ============ ====================================

Byte j of a 4-bit block holds element j in its low half and element j + 16 in its high half. A
further type is a further function in `DEQUANTISERS`. The 5-bit, K and IQ4 types are described in
`unpack`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MappingProxyType

import torch

from pegboard.errors import UnsupportedError
from pegboard_quant_gguf.types import TYPES_BY_NAME
from pegboard_quant_gguf.unpack import LAYOUTS, unpack

__all__ = ["DEQUANTISERS", "dequantise_rows", "split_blocks"]

_CHUNK_ELEMENTS = 1 << 18
# Elements handled at once: 1 MiB of floats, so that the passes over them stay in the cache.


def dequantise_rows(raw: torch.Tensor, stored_type: str) -> torch.Tensor:
    """Values of ``raw: uint8 [rows, row bytes]`` (or of a plain type's own dtype) as ``float32
    [rows, columns]``.

    Raises `UnsupportedError` for a type that has no function here.
    """
    if raw.dtype != torch.uint8:
        return raw.to(torch.float32)
    if stored_type not in DEQUANTISERS:
        raise UnsupportedError(
            f"{stored_type} is not supported by this version; supported: {', '.join(DEQUANTISERS)}"
        )
    kind = TYPES_BY_NAME[stored_type]
    blocks = raw.reshape(-1, kind.block_bytes)
    out = torch.empty(blocks.shape[0], kind.block_size, device=raw.device)
    step = _CHUNK_ELEMENTS // kind.block_size
    for start in range(0, blocks.shape[0], step):
        DEQUANTISERS[stored_type](blocks[start : start + step], out[start : start + step])
    return out.view(raw.shape[0], -1)


def split_blocks(
    blocks: torch.Tensor, stored_type: str
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Views of ``blocks: uint8 [..., block bytes]``: scales ``float16 [...]``, minima or None,
    codes ``uint8 [..., n]``."""
    scale = blocks[..., 0:2].view(torch.float16).squeeze(-1)
    if stored_type == "Q4_1":
        return scale, blocks[..., 2:4].view(torch.float16).squeeze(-1), blocks[..., 4:]
    return scale, None, blocks[..., 2:]


def _q8_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    scale, _, codes = split_blocks(blocks, "Q8_0")
    out.copy_(codes.view(torch.int8)).mul_(scale.float().unsqueeze(1))


def _unpack_nibbles(codes: torch.Tensor, out: torch.Tensor) -> None:
    out[:, :16].copy_(codes & 15)
    out[:, 16:].copy_(codes >> 4)


def _q4_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    scale, _, codes = split_blocks(blocks, "Q4_0")
    _unpack_nibbles(codes, out)
    out.sub_(8).mul_(scale.float().unsqueeze(1))


def _q4_1(blocks: torch.Tensor, out: torch.Tensor) -> None:
    scale, minimum, codes = split_blocks(blocks, "Q4_1")
    assert minimum is not None
    _unpack_nibbles(codes, out)
    out.mul_(scale.float().unsqueeze(1)).add_(minimum.float().unsqueeze(1))


def _unpacked(stored_type: str, blocks: torch.Tensor, out: torch.Tensor) -> None:
    unpack(stored_type, blocks.unsqueeze(-1), out.unsqueeze(-1))


DEQUANTISERS: MappingProxyType[str, Callable[[torch.Tensor, torch.Tensor], None]] = (
    MappingProxyType(
        {
            "Q8_0": _q8_0,
            "Q4_0": _q4_0,
            "Q4_1": _q4_1,
            **{name: partial(_unpacked, name) for name in LAYOUTS},
        }
    )
)
"""``(blocks uint8 [n, block bytes], out float32 [n, block size])`` per block type."""
