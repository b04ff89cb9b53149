"""The paged storage of one slot, whichever of the two layouts it has."""

from __future__ import annotations

import torch

from pegboard.api.kv import KVLayout, KVTensors
from pegboard_attention_torch.plan import Pack, Row

__all__ = ["LAYOUTS", "Store"]

LAYOUTS = (
    KVLayout("kv-block-token-head-dim", ("kv", "block", "token", "head", "dim")),
    KVLayout("block-kv-token-head-dim", ("block", "kv", "token", "head", "dim")),
)
"""In order of preference: in the first a run of blocks that follow one another is one plain view of
its tokens; the second also fits groups whose pages differ in size."""


class Store:
    """Keys and values of one slot, by block and by token."""

    def __init__(self, kv: KVTensors) -> None:
        first = kv.layout.axes[0]
        self._blocks = kv.data if first == "kv" else kv.data.transpose(0, 1)
        """[2, blocks, tokens of a block, kv heads, dim]"""
        self._tokens = kv.data.view(2, -1, *kv.data.shape[3:]) if first == "kv" else None
        """[2, token places, kv heads, dim]: the same storage, where it is one."""
        self._size = self._blocks.shape[2]

    def write(
        self, slots: torch.Tensor, place: int | None, key: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Store ``key`` and ``value [T, kv heads, dim]`` at the token places ``slots [T]``, which
        follow one another from `place` on unless that is None."""
        if place is not None and self._tokens is not None:
            places = slice(place, place + key.shape[0])
            self._tokens[0, places], self._tokens[1, places] = key, value
            return
        for side, new in enumerate((key, value)):
            rounded = new.to(self._blocks.dtype)
            if self._tokens is not None:
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
        return found.to(dtype).transpose(1, 2).unsqueeze(2)

    def pack(self, pack: Pack, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a pack, each ``[rows, kv heads, length, dim]``."""
        keys, values = (
            self._places(side, pack.places)
            .unflatten(0, (-1, pack.length))
            .to(dtype)
            .transpose(1, 2)
            for side in (0, 1)
        )
        return keys, values

    def _places(self, side: int, places: torch.Tensor) -> torch.Tensor:
        if self._tokens is not None:
            return self._tokens[side].index_select(0, places)
        return self._blocks[side][places // self._size, places % self._size]
