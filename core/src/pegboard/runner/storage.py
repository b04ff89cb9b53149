"""The KV cache's tensors: making them, and copying blocks inside them.

One buffer per lane; slot j of every group is a view of buffer j, see `pegboard.api.kv`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import attrs
import numpy as np
import torch

from pegboard.api.kv import (
    EncoderOnlySpec,
    KVCacheConfig,
    KVGroup,
    KVLayout,
    KVSlot,
    KVTensors,
    RecurrentSpec,
)
from pegboard.api.step import BlockCopy
from pegboard.runner.layouts import check_cuts

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

    A slot that shares has its owner's tensor. Raises `SelectionError` where groups cannot share
    memory because their layouts cut it into different blocks.
    """
    check_cuts(cache, layouts)
    lanes = [_zeros(cache.num_blocks * cache.page_bytes, device) for _ in range(cache.lanes)]
    storage = {}
    for group, layout in zip(cache.groups, layouts, strict=True):
        for number, key in enumerate(group.slots):
            lane = lanes[number] if group.slot_bytes() else _zeros(0, device)
            storage[key] = _view(key, group, layout, lane, cache)
    for slot in slots:
        if slot.shares is not None:
            storage[slot.key] = attrs.evolve(storage[slot.shares], key=slot.key)
    return storage


def _view(
    key: str, group: KVGroup, layout: KVLayout, lane: torch.Tensor, cache: KVCacheConfig
) -> KVTensors:
    """One slot's view of its lane."""
    spec = group.spec
    if isinstance(spec, RecurrentSpec):
        data = lane.view(cache.num_blocks, cache.page_bytes)
        return KVTensors(key, group.index, spec, layout, data, _states(spec, data))
    blocks = 0 if isinstance(spec, EncoderOnlySpec) else cache.num_blocks
    shape = layout.shape(spec, blocks, group.block_size)
    data = lane.view(getattr(torch, spec.dtype))
    if group.slot_bytes() in (0, cache.page_bytes):
        return KVTensors(key, group.index, spec, layout, data.view(shape))
    padded = data.view(blocks, -1)[:, : prod(shape) // blocks]
    return KVTensors(key, group.index, spec, layout, padded.unflatten(1, shape[1:]))


def _states(spec: RecurrentSpec, pages: torch.Tensor) -> dict[str, torch.Tensor]:
    """State tensors by name, ``[blocks, *shape]``, each at its offset in every page."""
    views = {}
    for state in spec.states:
        start = spec.offsets()[state.name]
        part = pages[:, start : start + state.bytes()].view(getattr(torch, state.dtype))
        views[state.name] = part.unflatten(1, state.shape)
    return views


def _zeros(nbytes: int, device: torch.device) -> torch.Tensor:
    """Zeros, uint8.

    On a CPU no page is touched before a block is first used, so an idle cache takes no memory.
    """
    if device.type != "cpu":
        return torch.zeros(nbytes, dtype=torch.uint8, device=device)
    raw = np.zeros(nbytes + _ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % _ALIGNMENT
    return torch.from_numpy(raw[skip : skip + nbytes])


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
    """A view of the first `tokens` tokens of a block; a state is one whole."""
    if tensors.states:
        return tensors.data[block]
    axes = tensors.layout.axes
    return tensors.data.narrow(axes.index("block"), block, 1).narrow(axes.index("token"), 0, tokens)
