"""The paged storage of one slot, whichever of the two layouts it has."""

from __future__ import annotations

import torch

from pegboard.api.attention import AttentionInputs, AttentionLayer
from pegboard.api.kv import KVLayout, KVTensors
from pegboard_attention_torch.plan import Pack, Row

__all__ = ["FP8", "LAYOUTS", "Store"]

LAYOUTS = (
    KVLayout("kv-block-token-head-dim", ("kv", "block", "token", "head", "dim")),
    KVLayout("block-kv-token-head-dim", ("block", "kv", "token", "head", "dim")),
)
"""In order of preference: in the first a run of blocks that follow one another is one plain view of
its tokens; the second also fits groups whose pages differ in size."""


FP8 = torch.float8_e4m3fn
LARGEST = 448.0
"""Of its numbers."""


class Store:
    """Keys and values of one slot, by block and by token.

    8-bit floats are moved as bytes, for torch cannot index them; they are read as they are stored,
    without the scales of the layer.
    """

    def __init__(self, kv: KVTensors) -> None:
        first = kv.layout.axes[0]
        self._coded = kv.data.dtype == FP8
        data = kv.data.view(torch.uint8) if self._coded else kv.data
        self._blocks = data if first == "kv" else data.transpose(0, 1)
        """[2, blocks, tokens of a block, kv heads, dim]"""
        self._tokens = data.view(2, -1, *data.shape[3:]) if first == "kv" else None
        """[2, token places, kv heads, dim]: the same storage, where it is one."""
        self._size = self._blocks.shape[2]

    def write(
        self, slots: torch.Tensor, place: int | None, layer: AttentionLayer, new: AttentionInputs
    ) -> None:
        """Store keys and values of T tokens at the token places ``slots [T]``, which follow one
        another from `place` on unless that is None."""
        sides = ((new.key, layer.k_scale), (new.value, layer.v_scale))
        for side, (values, scale) in enumerate(sides):
            rounded = _coded(values, scale) if self._coded else values.to(self._blocks.dtype)
            if place is not None and self._tokens is not None:
                self._tokens[side, place : place + len(rounded)] = rounded
            elif self._tokens is not None:
                self._tokens[side].index_copy_(0, slots, rounded)
            else:
                self._blocks[side].index_put_((slots // self._size, slots % self._size), rounded)

    def row(self, row: Row, dtype: torch.dtype) -> torch.Tensor:
        """What one row sees: ``[2, kv heads, 1, length - begin, dim]``."""
        seen = row.length - row.begin
        if row.start is not None and self._tokens is not None:
            found = self._tokens[:, row.start : row.start + seen]
        elif row.start is not None:
            block, skip = divmod(row.start, self._size)
            count = -(-(skip + seen) // self._size)
            found = self._blocks[:, block : block + count].flatten(1, 2)[:, skip : skip + seen]
        else:
            assert row.blocks is not None
            skip = row.begin % self._size
            found = self._blocks.index_select(1, row.blocks).flatten(1, 2)[:, skip : skip + seen]
        return self._read(found, dtype).transpose(1, 2).unsqueeze(2)

    def pack(self, pack: Pack, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a pack, each ``[rows, kv heads, length, dim]``."""
        keys, values = (
            self._read(self._places(side, pack.places), dtype)
            .unflatten(0, (-1, pack.length))
            .transpose(1, 2)
            for side in (0, 1)
        )
        return keys, values

    def _places(self, side: int, places: torch.Tensor) -> torch.Tensor:
        if self._tokens is not None:
            return self._tokens[side].index_select(0, places)
        return self._blocks[side][places // self._size, places % self._size]

    def _read(self, found: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return (found.view(FP8) if self._coded else found).to(dtype)


def _coded(values: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """As the op ``store_kv`` rounds them, as bytes."""
    wide = values.float() if scale is None else values.float() * scale.reciprocal()
    return wide.clamp(-LARGEST, LARGEST).to(FP8).view(torch.uint8)
