"""How the cache lies in memory: layouts, the pool, the tensors. Part of `pegboard.api.kv`."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING

import attrs

from pegboard.api.kv_groups import _PAGE_ALIGNMENT, KVGroup
from pegboard.api.kv_specs import KVSpec

if TYPE_CHECKING:
    import torch

__all__ = ["STRIDED_LAYOUTS", "KVCacheConfig", "KVLayout", "KVTensors"]


@attrs.frozen
class KVLayout:
    """Order of axes of a slot's storage, outermost first.

    Axes: ``block``, ``kv`` (0 keys, 1 values), ``token``, ``head``, ``dim``; a latent slot has no
    ``kv`` and ``head``. A backend offers layouts in order of preference; the first one that
    platform and connector accept is taken. Groups that share memory need layouts that cut it into
    the same blocks: either all have ``block`` first, or all have ``kv`` and then ``block``.
    """

    name: str
    axes: tuple[str, ...]

    def shape(self, spec: KVSpec, blocks: int, block_size: int) -> tuple[int, ...]:
        """Shape of the storage of one slot that holds keys and values, or latent vectors."""
        sizes = {"block": blocks, "token": block_size, **spec.axes()}
        shape = tuple(sizes[axis] for axis in self.axes)
        assert prod(shape) == prod(sizes.values()), f"{self.axes} lack an axis of {spec.kind}"
        return shape


STRIDED_LAYOUTS = (
    KVLayout("block-kv-head-token-dim", ("block", "kv", "head", "token", "dim")),
    KVLayout("block-kv-token-head-dim", ("block", "kv", "token", "head", "dim")),
    KVLayout("kv-block-head-token-dim", ("kv", "block", "head", "token", "dim")),
    KVLayout("kv-block-token-head-dim", ("kv", "block", "token", "head", "dim")),
)
"""What a kernel can offer that finds keys and values by strides, in an order that serves it: in the
first two a page is one run of bytes, so groups of any kind share memory; in the first, the tokens
of a block that a program reads follow one another."""


@attrs.frozen
class KVCacheConfig:
    """The decided cache: groups and how many blocks the pool has, block 0 (the null block)
    included."""

    groups: tuple[KVGroup, ...]
    num_blocks: int
    reason: str = ""
    """Why so many blocks, and what fits into them: some sentences for people."""

    @property
    def lanes(self) -> int:
        """Slots of the largest group that keeps anything."""
        return max((len(group.slots) for group in self.groups if group.slot_bytes()), default=0)

    @property
    def page_bytes(self) -> int:
        """Bytes of one block in one lane: what the neediest group fills, the others pad."""
        sizes = {group.slot_bytes() for group in self.groups} - {0}
        if len(sizes) <= 1:
            return max(sizes, default=0)
        return -(-max(sizes) // _PAGE_ALIGNMENT) * _PAGE_ALIGNMENT

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all lanes."""
        return self.lanes * self.page_bytes

    def bytes(self) -> int:
        return self.num_blocks * self.block_bytes


@attrs.frozen(eq=False)
class KVTensors:
    """Storage of one slot, worker side.

    Other groups write to the same memory while they hold a block: what a group has not written
    itself since it was given the block may hold any bits, not-a-number included.
    """

    key: str
    group: int
    spec: KVSpec
    layout: KVLayout
    data: torch.Tensor
    """Axes as `layout` says; of recurrent state: uint8 ``[blocks, page bytes]``."""
    states: Mapping[str, torch.Tensor] = attrs.field(factory=dict)
    """Of recurrent state: by name, ``[blocks, *shape]``, views of `data`."""

    def strides(self, *axes: str) -> tuple[int, ...]:
        """Elements from one place to the next along each of `axes` of the layout, for kernels that
        find keys and values by them."""
        order = self.layout.axes
        return tuple(self.data.stride(order.index(axis)) for axis in axes)

    def page(self, block: int) -> torch.Tensor:
        """A view of one block: the axes of `layout` without ``block``, or the bytes of a state."""
        if self.states:
            return self.data[block, : self.spec.page_bytes(1)]
        return self.data.select(self.layout.axes.index("block"), block)
