"""The KV cache's tensors: making them, and copying blocks inside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import attrs
import numpy as np
import torch

from pegboard.api.kv import KVCacheConfig, KVLayout, KVSlot, KVTensors
from pegboard.api.step import BlockCopy

__all__ = ["allocate_storage", "copy_blocks"]

_ALIGNMENT = 64
"""Bytes; a cache line, so that no vector load of a row of a head crosses two."""


def allocate_storage(
    slots: Iterable[KVSlot],
    cache: KVCacheConfig,
    layouts: Sequence[KVLayout],
    device: torch.device,
) -> dict[str, KVTensors]:
    """Storage by slot key, zeroed; `layouts` are those of the groups.

    A slot that shares has its owner's tensor.
    """
    storage = {}
    for group, layout in zip(cache.groups, layouts, strict=True):
        shape = layout.shape(group.spec, cache.num_blocks, group.block_size)
        dtype = getattr(torch, group.spec.dtype)
        for key in group.slots:
            data = _zeros(shape, dtype, device)
            storage[key] = KVTensors(key, group.index, group.spec, layout, data)
    for slot in slots:
        if slot.shares is not None:
            storage[slot.key] = attrs.evolve(storage[slot.shares], key=slot.key)
    return storage


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros.

    On a CPU no page is touched before a block is first used, so an idle cache takes no memory.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    nbytes = prod(shape) * dtype.itemsize
    raw = np.zeros(nbytes + _ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % _ALIGNMENT
    return torch.from_numpy(raw[skip : skip + nbytes]).view(dtype).view(shape)


def copy_blocks(copies: Sequence[BlockCopy], storage: Iterable[KVTensors]) -> None:
    """Carry out the copies in order, in every slot of their groups.

    Shared storage may be named twice.
    """
    for copy in copies:
        for tensors in storage:
            if tensors.group == copy.group:
                source = _block(tensors, copy.source, copy.tokens)
                _block(tensors, copy.target, copy.tokens).copy_(source)


def _block(tensors: KVTensors, block: int, tokens: int) -> torch.Tensor:
    """A view of the first `tokens` tokens of a block."""
    axes = tensors.layout.axes
    return tensors.data.narrow(axes.index("block"), block, 1).narrow(axes.index("token"), 0, tokens)
