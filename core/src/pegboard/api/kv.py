"""KV cache as data: what a layer stores, how layers form groups, how big a page is.

A *slot* is one thing a layer caches (self-attention keys and values, cross-attention, a recurrent
state); a layer may have any number of them. Slots with equal specifications form a *group*; all
slots of a group use the same block table. The scheduler and the KV manager know groups only, never
layers or model names.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Literal

import attrs

if TYPE_CHECKING:
    import torch

__all__ = [
    "ITEM_BYTES",
    "FullAttentionSpec",
    "KVCacheConfig",
    "KVGroup",
    "KVLayout",
    "KVSlot",
    "KVSpec",
    "KVTensors",
]

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}
"""Bytes per element of the dtypes that a cache may have, by torch name."""


@attrs.frozen
class FullAttentionSpec:
    """Keys and values of every earlier token are kept."""

    kv_heads: int
    head_size: int
    dtype: str
    value_head_size: int | None = None
    """None: as `head_size`."""
    kind: Literal["full"] = "full"

    def token_bytes(self) -> int:
        """Bytes that one token takes in one slot."""
        width = self.head_size + (self.value_head_size or self.head_size)
        return self.kv_heads * width * ITEM_BYTES[self.dtype]

    def page_bytes(self, block_size: int) -> int:
        """Bytes of one block of `block_size` tokens in one slot."""
        return block_size * self.token_bytes()

    def blocks_for(self, tokens: int, block_size: int) -> int:
        """Blocks that a request of `tokens` tokens holds at most."""
        return -(-tokens // block_size)


KVSpec = FullAttentionSpec
"""Union of all specifications."""


@attrs.frozen
class KVSlot:
    """One cached thing of one layer. Its key is ``"<layer>.<name>"``."""

    layer: int
    name: str
    spec: KVSpec | None = None
    shares: str | None = None
    """Key of the slot whose storage this one reads, instead of `spec`."""

    @property
    def key(self) -> str:
        return f"{self.layer}.{self.name}"


@attrs.frozen
class KVGroup:
    """Slots with one specification, one block size and one block table per request."""

    index: int
    spec: KVSpec
    block_size: int
    """Tokens per block."""
    slots: tuple[str, ...]

    def page_bytes(self) -> int:
        """Bytes of one block over all slots of the group."""
        return len(self.slots) * self.spec.page_bytes(self.block_size)


@attrs.frozen
class KVLayout:
    """Order of axes of a slot's storage, outermost first.

    Axes: ``block``, ``kv`` (0 keys, 1 values), ``token``, ``head``, ``dim``. A backend offers
    layouts in order of preference; the first one that platform and connector accept is taken.
    """

    name: str
    axes: tuple[str, ...]

    def shape(self, spec: FullAttentionSpec, blocks: int, block_size: int) -> tuple[int, ...]:
        """Shape of the storage of one slot."""
        sizes = {
            "block": blocks,
            "kv": 2,
            "token": block_size,
            "head": spec.kv_heads,
            "dim": spec.head_size,
        }
        shape = tuple(sizes[axis] for axis in self.axes)
        assert prod(shape) == prod(sizes.values())
        return shape


@attrs.frozen
class KVCacheConfig:
    """The decided cache: groups and how many blocks the pool has, block 0 (the null block)
    included."""

    groups: tuple[KVGroup, ...]
    num_blocks: int
    reason: str = ""
    """One sentence on why so many blocks."""

    def bytes(self) -> int:
        return self.num_blocks * sum(group.page_bytes() for group in self.groups)


@attrs.frozen(eq=False)
class KVTensors:
    """Storage of one slot, worker side."""

    key: str
    group: int
    spec: KVSpec
    layout: KVLayout
    data: torch.Tensor
    """Axes as `layout` says."""
