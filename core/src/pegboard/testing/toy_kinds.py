"""Toy models of every kind of KV group, alone and mixed, small enough that windows and state
borders come up all the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from pegboard.api.kv import (
    ChunkedLocalSpec,
    CrossAttentionSpec,
    EncoderOnlySpec,
    FullAttentionSpec,
    KVSpec,
    LatentSpec,
    RecurrentSpec,
    SlidingWindowSpec,
    StateTensor,
)

__all__ = ["TOY_KINDS"]

_FULL = FullAttentionSpec(1, 2, "float32")
_WIDE = FullAttentionSpec(1, 6, "float32")
_SLIDING = SlidingWindowSpec(1, 2, "float32", window=20)
_NARROW = SlidingWindowSpec(1, 2, "float32", window=1)
_CHUNKED = ChunkedLocalSpec(1, 2, "float32", chunk=24)
_LATENT = LatentSpec(4, "float32")
_CROSS = CrossAttentionSpec(1, 2, "float32", max_tokens=20)
_ENCODER = EncoderOnlySpec(1, 2, "float32")
_STATES = (StateTensor("conv", (3, 5), "bfloat16"), StateTensor("memory", (4, 11), "float32"))
"""Of a page of 256 bytes: two base blocks of 8 tokens of the attention layers above."""
_NONE = RecurrentSpec(_STATES, "none")
_ALIGN = RecurrentSpec(_STATES, "align")
_ALL = RecurrentSpec(_STATES, "all")

TOY_KINDS: Mapping[str, Sequence[KVSpec]] = MappingProxyType(
    {
        "full": [_FULL],
        "full of two sizes": [_FULL, _WIDE],
        "sliding": [_SLIDING],
        "sliding by one": [_NARROW, _FULL],
        "sliding and full": [_SLIDING, _SLIDING, _FULL, _SLIDING, _SLIDING, _FULL],
        "sliding and wide": [_SLIDING, _WIDE],
        "chunked": [_CHUNKED],
        "chunked and full": [_CHUNKED, _FULL, _CHUNKED],
        "latent": [_LATENT],
        "latent and sliding": [_LATENT, _SLIDING],
        "state": [_ALIGN],
        "state without copies": [_NONE, _FULL],
        "state and full": [_ALIGN, _ALIGN, _ALIGN, _FULL],
        "state at every border and full": [_ALL, _FULL],
        "cross and full": [_CROSS, _FULL],
        "encoder and full": [_ENCODER, _FULL],
        "all that have hits": [_ALIGN, _ALL, _SLIDING, _CHUNKED, _LATENT, _WIDE],
        "all": [_NONE, _ALIGN, _ALL, _SLIDING, _CHUNKED, _LATENT, _WIDE, _CROSS, _ENCODER],
    }
)
"""Layers of toy models by name, for `pegboard.testing.toy.ToyExecutor`."""
