"""The fast way with 4-bit weights on a CPU: torch's int4 kernel for few rows, tiles for many.

``torch._weight_int4pack_mm_for_cpu`` computes with ``(code - 8) * scale + zero`` per group of 32
inputs, which a Q4_1 block is with ``scale = d`` and ``zero = m + 8 d``, and a Q4_0 block with
``zero = 0``. Scales and zeros are rounded to bfloat16 (relative error 2^-9), the kernel's inputs
and outputs too, sums are float32.

The kernel's cost grows with every row, so from `FEW_ROWS` rows on the same packed weights are
unpacked by tile. For that their layout must be known; it depends on the CPU and is read off a small
matrix::

    [output / W][input][W / 2 bytes]
    byte c of the innermost axis: output c in the low half, output W / 2 + c in the high half

with W = 64 (AVX-512) or 32 (AVX2). Where torch packs differently or not at all, `NibbleTiles` does
all the work.
"""

from __future__ import annotations

import torch

from pegboard_quant_gguf.dequant import split_blocks
from pegboard_quant_gguf.kernels import BLOCK, NibbleTiles, Params, multiply_into, walk_tiles

__all__ = ["FEW_ROWS", "PackedNibbles", "has_bfloat16_units", "packed_width"]

FEW_ROWS = 32
"""Up to so many rows the int4 kernel is the faster way. Measured with AVX2: 1.3 times faster at
32 rows, 1.5 times slower at 64."""
PAD = 64
_PACK_ROWS = 256
_LOW_HALVES = 0x0F0F0F0F0F0F0F0F


def packed_width() -> int | None:
    """W of the layout above in this process, or None if torch packs in another way."""
    outputs, inputs = 128, BLOCK
    codes = torch.randint(
        0, 16, (outputs, inputs), dtype=torch.int32, generator=torch.Generator().manual_seed(0)
    )
    try:
        packed = torch._convert_weight_to_int4pack_for_cpu(codes, 1).flatten()
    except (AttributeError, RuntimeError):
        return None
    for width in (64, 32):
        halves = codes.to(torch.uint8).view(-1, 2, width // 2, inputs)
        expected = (halves[:, 0] | halves[:, 1] << 4).transpose(1, 2).flatten()
        if torch.equal(packed, expected):
            return width
    return None


def has_bfloat16_units() -> bool:
    """True if this CPU multiplies bfloat16 matrices natively; otherwise float32 products are
    several times faster."""
    facts: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(facts.get("avx512_bf16") or facts.get("amx_bf16"))


class PackedNibbles:
    """Q4_0 and Q4_1 for bfloat16 activations on a CPU. On another device it is `NibbleTiles`.

    ``packed uint8 [outputs, inputs / 2]`` and ``scales bfloat16 [inputs / 32, outputs, 2]`` (scale,
    zero), outputs padded with zeros to a multiple of 64.
    """

    def __init__(self, stored_type: str, width: int, bfloat16_units: bool) -> None:
        """`width`: `packed_width` of this process. `bfloat16_units`: round tiles to bfloat16 for
        the many-row product."""
        self._type = stored_type
        self._width = width
        self._many = torch.bfloat16 if bfloat16_units else torch.float32
        self._tiles = NibbleTiles(stored_type)

    def prepare(self, raw: torch.Tensor) -> dict[str, torch.Tensor]:
        if raw.device.type != "cpu":
            return self._tiles.prepare(raw)
        blocks = raw.view(raw.shape[0], -1, 20 if self._type == "Q4_1" else 18)
        scale, low, codes = split_blocks(blocks, self._type)
        outputs = -(-raw.shape[0] // PAD) * PAD
        scales = torch.zeros(blocks.shape[1], outputs, 2, dtype=torch.bfloat16)
        scales[:, : raw.shape[0], 0] = scale.t()
        if low is not None:
            scales[:, : raw.shape[0], 1] = (low.float() + 8 * scale.float()).t()
        packed = torch.empty(outputs, blocks.shape[1] * 16, dtype=torch.uint8)
        for start in range(0, outputs, _PACK_ROWS):
            packed[start : start + _PACK_ROWS] = _pack(codes[start : start + _PACK_ROWS])
        return {"packed": packed, "scales": scales}

    def multiply(self, params: Params, x: torch.Tensor, outputs: int) -> torch.Tensor:
        if "packed" not in params:
            return self._tiles.multiply(params, x, outputs)
        if x.shape[0] > FEW_ROWS:
            return self._multiply_many(params, x)[:, :outputs]
        product = torch._weight_int4pack_mm_for_cpu(
            x.to(torch.bfloat16).contiguous(), params["packed"], BLOCK, params["scales"]
        )
        return product[:, :outputs].to(x.dtype)

    def rows(self, params: Params, ids: torch.Tensor) -> torch.Tensor:
        if "packed" not in params:
            return self._tiles.rows(params, ids)
        width, half = self._width, self._width // 2
        inputs = params["packed"].shape[1] * 2
        place = ids % width
        codes = params["packed"].view(-1, inputs, half)[ids // width, :, place % half]
        codes = torch.where((place < half).unsqueeze(1), codes & 15, codes >> 4)
        scale, zero = params["scales"].index_select(1, ids).float().permute(2, 1, 0).unsqueeze(-1)
        blocks = codes.float().unflatten(1, (-1, BLOCK))
        return torch.addcmul(zero - 8 * scale, blocks, scale).flatten(1)

    def _multiply_many(self, params: Params, x: torch.Tensor) -> torch.Tensor:
        wide, outputs = x.to(self._many), params["packed"].shape[0]
        out = x.new_empty(x.shape[0], outputs)
        for start, stop, tile in walk_tiles(x, outputs, PAD, self._many):
            self._fill(params, start, stop, tile)
            multiply_into(out[:, start:stop], wide, tile)
        return out

    def _fill(self, params: Params, start: int, stop: int, tile: torch.Tensor) -> None:
        """Unpack outputs ``start:stop`` into ``tile [inputs, stop - start]``.

        Codes less 8, scales and zeros are exact in bfloat16 too; only the values are rounded.
        """
        inputs, words = tile.shape[0], params["packed"][start:stop].view(torch.int64)
        # Passes over whole words, eight codes each, come first: they read what lies in main memory
        # in order. Then 16 bytes move as one element, which makes the transposition cheap.
        count, quads = (stop - start) // self._width, self._width // 32
        apart = tile.new_empty(inputs, count, 2, quads, dtype=torch.complex128)
        for half, word in enumerate((words & _LOW_HALVES, (words >> 4).bitwise_and_(_LOW_HALVES))):
            codes = word.view(torch.int8).sub_(8).view(torch.complex128)
            apart[:, :, half] = codes.view(count, inputs, quads).transpose(0, 1)
        tile.copy_(apart.view(torch.int8).view_as(tile))
        scale, zero = _wide_pairs(params["scales"][:, start:stop])
        blocks = tile.view(-1, BLOCK, stop - start)
        torch.addcmul(zero.to(tile.dtype), blocks, scale.to(tile.dtype), out=blocks)


def _wide_pairs(pairs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both halves of ``bfloat16 [n, outputs, 2]`` as ``float32 [n, 1, outputs]``.

    A bfloat16 is the upper half of a float32. On words of two this takes a tenth of the time of a
    conversion that reads every other element.
    """
    both = pairs.view(torch.int32).squeeze(2).unsqueeze(1)
    return (both << 16).view(torch.float32), (both & -0x10000).view(torch.float32)


def _pack(codes: torch.Tensor) -> torch.Tensor:
    """Pack block codes ``uint8 [n, blocks, 16]``, as the file has them, after padding n to a
    multiple of 64."""
    wide = torch.cat((codes & 15, codes >> 4), dim=-1).flatten(1).to(torch.int32)
    missing = -len(wide) % PAD
    if missing:
        wide = torch.cat((wide, wide.new_zeros(missing, wide.shape[1])))
    return torch._convert_weight_to_int4pack_for_cpu(wide, 1)
