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
from pegboard.errors import SelectionError

__all__ = ["allocate_storage", "choose_layouts", "copy_blocks"]

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
    _check_cuts(cache, layouts)
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


def choose_layouts(
    groups: Sequence[KVGroup], offers: Sequence[Sequence[KVLayout]]
) -> tuple[KVLayout, ...]:
    """A layout for each group, of those that its kernel offers, so that all can share memory.

    `offers` are in order of preference, none of them empty. Raises `SelectionError` where no choice
    fits all groups.
    """
    cache = KVCacheConfig(tuple(groups), num_blocks=1)
    pairs = list(zip(groups, offers, strict=True))
    runs = dict.fromkeys(_runs(group, layout) for group, offer in pairs for layout in offer)
    choices = [tuple(_with_runs(group, offer, count) for group, offer in pairs) for count in runs]
    faults = [_cut_fault(cache, layouts) for layouts in choices]
    if None not in faults:
        raise SelectionError(str(faults[0]))
    return choices[faults.index(None)]


def _with_runs(group: KVGroup, offer: Sequence[KVLayout], runs: int) -> KVLayout:
    """The preferred layout that cuts a page into `runs` runs, else the preferred one."""
    return next((layout for layout in offer if _runs(group, layout) == runs), offer[0])


def _check_cuts(cache: KVCacheConfig, layouts: Sequence[KVLayout]) -> None:
    fault = _cut_fault(cache, layouts)
    if fault is not None:
        raise SelectionError(fault)


def _cut_fault(cache: KVCacheConfig, layouts: Sequence[KVLayout]) -> str | None:
    """Why groups of these layouts cannot share memory, if so: a block must be the same bytes in
    every group.

    A page is one run of bytes if the block axis is the outermost, else one run for each index of
    the axes outside it.
    """
    pairs = zip(cache.groups, layouts, strict=True)
    kept = [(group, layout) for group, layout in pairs if group.slot_bytes()]
    if len(kept) < 2:
        return None
    runs = [_runs(group, layout) for group, layout in kept]
    padded = any(group.slot_bytes() < cache.page_bytes for group, _ in kept)
    if len(set(runs)) == 1 and not (padded and runs[0] > 1):
        return None
    names = ", ".join(f"group {g.index} ({g.spec.kind}) {used.name}" for g, used in kept)
    return (
        f"KV groups share memory, but their layouts cut it into different blocks: {names}; "
        f"layouts with the block axis outermost fit all groups"
    )


def _runs(group: KVGroup, layout: KVLayout) -> int:
    """Runs of bytes that a page consists of."""
    if isinstance(group.spec, RecurrentSpec):
        return 1
    outside = layout.shape(group.spec, 1, group.block_size)[: layout.axes.index("block")]
    return prod(outside)


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
