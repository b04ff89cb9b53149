"""Windows and chunks that hold the whole context are full attention."""

from __future__ import annotations

import pytest

from pegboard.api.kv import ChunkedLocalSpec, FullAttentionSpec, KVSlot, SlidingWindowSpec
from pegboard.api.model import ModelFacts
from pegboard.config import EngineConfig
from pegboard.config.model import apply_cache_settings

CONTEXT = 64


@pytest.mark.parametrize(
    "make",
    [
        lambda reach: SlidingWindowSpec(2, 8, "auto", 4, window=reach),
        lambda reach: ChunkedLocalSpec(2, 8, "auto", 4, chunk=reach),
    ],
)
def test_only_what_holds_the_whole_context_becomes_full_attention(make) -> None:  # type: ignore[no-untyped-def]
    slots = tuple(
        KVSlot(layer, "self", make(reach)) for layer, reach in enumerate([63, 64, 10**30])
    )
    config = EngineConfig(model="m")
    found = apply_cache_settings(ModelFacts(3, 8, 10, 4096, slots), config, "bfloat16", CONTEXT)
    short, equal, endless = (slot.spec for slot in found.kv_slots)
    assert short == make(63).with_dtype("bfloat16")
    assert equal == endless == FullAttentionSpec(2, 8, "bfloat16", 4)
