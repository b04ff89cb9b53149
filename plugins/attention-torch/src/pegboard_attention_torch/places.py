"""A slot's storage as token places, in either layout.

With keys and values apart, ``[2, block, token, head, dim]``, blocks that follow one another are one
plain view. With the block axis outermost a page is one run of bytes, so that other kinds of layers
(recurrent states, other head sizes) can share the memory; blocks may then lie apart from one
another, and a run of them is copied.
"""

from __future__ import annotations

import torch

from pegboard.api.kv import KVLayout, KVTensors

__all__ = ["LAYOUTS", "Places"]

_APART = KVLayout("kv-block-token-head-dim", ("kv", "block", "token", "head", "dim"))
_TOGETHER = KVLayout("block-kv-token-head-dim", ("block", "kv", "token", "head", "dim"))
LAYOUTS = (_APART, _TOGETHER)


class Places:
    """Place p is token ``p % block size`` of block ``p // block size``."""

    def __init__(self, kv: KVTensors) -> None:
        apart = kv.layout.axes[0] == "kv"
        self._blocks = kv.data if apart else kv.data.transpose(0, 1)
        self._flat = kv.data.view(2, -1, *kv.data.shape[3:]) if apart else None
        self.dtype = kv.data.dtype

    def write(self, places: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store ``[T, kv heads, dim]`` at ``places int64 [T]``."""
        for part, new in enumerate((key, value)):
            if self._flat is not None:
                self._flat[part].index_copy_(0, places, new.to(self.dtype))
            else:
                size = self._blocks.shape[2]
                self._blocks[part][places // size, places % size] = new.to(self.dtype)

    def run(self, start: int, length: int) -> torch.Tensor:
        """Keys and values of `length` places from the beginning of a block on: ``[2, length, kv
        heads, dim]``."""
        if self._flat is not None:
            return self._flat[:, start : start + length]
        size = self._blocks.shape[2]
        blocks = self._blocks[:, start // size : -(-(start + length) // size)]
        return blocks.flatten(1, 2)[:, :length]

    def scattered(self, blocks: torch.Tensor, length: int) -> torch.Tensor:
        """As `run`, of blocks ``int64 [blocks]`` anywhere."""
        return self._blocks.index_select(1, blocks).flatten(1, 2)[:, :length]

    def gather(self, part: int, places: torch.Tensor) -> torch.Tensor:
        """Keys (0) or values (1) of single places: ``[places, kv heads, dim]``."""
        if self._flat is not None:
            return self._flat[part].index_select(0, places)
        size = self._blocks.shape[2]
        return self._blocks[part][places // size, places % size]
