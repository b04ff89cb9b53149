"""KV cache as data: what a layer stores, how layers form groups, how big a page is.

A *slot* is one thing a layer caches (self-attention keys and values, cross-attention, a recurrent
state); a layer may have any number of them. Slots with equal specifications form *groups*; all
slots of a group use the same block table. The scheduler and the KV manager know groups only, never
layers or model names.

All groups share one pool of blocks and the same memory, which is cut into *lanes*; slot j of every
group lies in lane j::

              block 0   block 1   block 2   …            a page is what one block takes in one lane
    lane 0  | page    | page    | page    |    slot 0 of the group that holds the block
    lane 1  | page    | page    | page    |    slot 1
    lane 2  | page    | page    | page    |    slot 2, or nothing if the group has two slots

A block belongs to one group at a time and costs ``lanes * page bytes``, whichever group holds it.
Block 0 is the null block: it stands in block tables where a group keeps nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pegboard.api.kv_groups import KVGroup, KVSlot
from pegboard.api.kv_specs import (
    ITEM_BYTES,
    ChunkedLocalSpec,
    CrossAttentionSpec,
    EncoderOnlySpec,
    FullAttentionSpec,
    KVSpec,
    LatentSpec,
    RecurrentSpec,
    SlidingWindowSpec,
    StateMode,
    StateTensor,
    kv_heads_on_rank,
)
from pegboard.api.kv_storage import STRIDED_LAYOUTS, KVCacheConfig, KVLayout, KVTensors

if TYPE_CHECKING:
    pass

__all__ = [
    "ITEM_BYTES",
    "STRIDED_LAYOUTS",
    "ChunkedLocalSpec",
    "CrossAttentionSpec",
    "EncoderOnlySpec",
    "FullAttentionSpec",
    "KVCacheConfig",
    "KVGroup",
    "KVLayout",
    "KVSlot",
    "KVSpec",
    "KVTensors",
    "LatentSpec",
    "RecurrentSpec",
    "SlidingWindowSpec",
    "StateMode",
    "StateTensor",
    "kv_heads_on_rank",
]
