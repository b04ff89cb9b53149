"""What one slot keeps of a request, by kind. Part of `pegboard.api.kv`, which exports it.

A family declares one of these per slot; groups, block sizes, sizing, prefix hits and freeing follow
from it. `blocks_for` bounds what a request holds at any one time, `budget` being the most tokens of
one step; blocks that left a window are given back after each step.
"""

from __future__ import annotations

from pegboard.api.kv_attention import (
    ChunkedLocalSpec,
    CrossAttentionSpec,
    EncoderOnlySpec,
    FullAttentionSpec,
    SlidingWindowSpec,
)
from pegboard.api.kv_latent import LatentSpec
from pegboard.api.kv_sizes import ITEM_BYTES, kv_heads_on_rank
from pegboard.api.kv_states import RecurrentSpec, StateMode, StateTensor

__all__ = [
    "ITEM_BYTES",
    "ChunkedLocalSpec",
    "CrossAttentionSpec",
    "EncoderOnlySpec",
    "FullAttentionSpec",
    "KVSpec",
    "LatentSpec",
    "RecurrentSpec",
    "SlidingWindowSpec",
    "StateMode",
    "StateTensor",
    "kv_heads_on_rank",
]


KVSpec = (
    FullAttentionSpec
    | SlidingWindowSpec
    | ChunkedLocalSpec
    | LatentSpec
    | RecurrentSpec
    | CrossAttentionSpec
    | EncoderOnlySpec
)
"""Union of all specifications."""
