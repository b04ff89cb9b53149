"""Products with the block types of `unpack`: whole blocks lie transposed, outputs innermost.

::

    file   [output][block][byte]
    here   blocks uint8 [block][byte][output]

Memory is exactly that of the file. A tile is unpacked by passes that run along the outputs, which
is what the types' blocks (fields of 16 to 64 bytes) are too short for.
"""

from __future__ import annotations

import torch

from pegboard_quant_gguf.kernels import Params, multiply_into, walk_tiles
from pegboard_quant_gguf.types import TYPES_BY_NAME
from pegboard_quant_gguf.unpack import unpack

__all__ = ["BlockTiles"]

_STEP = 16
# Tiles are a multiple of so many outputs wide, for the sake of aligned vectors.


class BlockTiles:
    """A kernel for any type of `unpack.LAYOUTS`; products in float32."""

    def __init__(self, stored_type: str) -> None:
        self._kind = TYPES_BY_NAME[stored_type]

    def prepare(self, raw: torch.Tensor) -> dict[str, torch.Tensor]:
        blocks = raw.view(raw.shape[0], -1, self._kind.block_bytes)
        return {"blocks": blocks.permute(1, 2, 0).contiguous()}

    def multiply(self, params: Params, x: torch.Tensor, outputs: int) -> torch.Tensor:
        wide, out = x.float(), x.new_empty(x.shape[0], outputs)
        scratch: torch.Tensor | None = None
        for start, stop, tile in walk_tiles(x, outputs, _STEP):
            if scratch is None:  # the first tile is the largest
                scratch = torch.empty(2 * tile.numel(), dtype=torch.uint8, device=x.device)
            self._fill(params["blocks"][:, :, start:stop], tile, scratch)
            multiply_into(out[:, start:stop], wide, tile)
        return out

    def rows(self, params: Params, ids: torch.Tensor) -> torch.Tensor:
        blocks = params["blocks"].index_select(2, ids)
        tile = torch.empty(
            blocks.shape[0] * self._kind.block_size, ids.numel(), device=blocks.device
        )
        self._fill(blocks, tile)
        return tile.t().contiguous()

    def _fill(
        self, blocks: torch.Tensor, tile: torch.Tensor, scratch: torch.Tensor | None = None
    ) -> None:
        """Write the values of ``blocks [n, block bytes, width]`` to ``tile [inputs, width]``."""
        unpack(self._kind.name, blocks, tile.unflatten(0, (-1, self._kind.block_size)), scratch)
