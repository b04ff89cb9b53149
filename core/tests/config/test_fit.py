from __future__ import annotations

from typing import Any

import attrs
import pytest

from pegboard.api.kv import FullAttentionSpec, KVSlot
from pegboard.api.model import ModelFacts
from pegboard.config import EngineConfig
from pegboard.config.fit import DeviceMemory, check_fit, request_bytes
from pegboard.errors import ResourceError

MIB = 1024**2
PAGE = 2 * 16 * 2 * 128 * 4
"""32 KiB, a block of 16 tokens: two layers, two heads of 64 keys and 64 values, float32."""


FACTS = ModelFacts(
    layers=2,
    hidden_size=8,
    vocab_size=10,
    max_positions=4096,
    kv_slots=tuple(KVSlot(i, "self", FullAttentionSpec(2, 64, "float32")) for i in range(2)),
)


@attrs.frozen
class Model:
    """As much of a resolved model as the arithmetic needs."""

    weight_bytes: int
    max_model_len: int = 1000
    facts: ModelFacts = FACTS


def check(
    weights: int, free: int, *, total: int | None = None, length: int = 1000, **options: Any
) -> None:
    model: Any = Model(weights, length)
    settings = EngineConfig(model="m", **{"gpu_memory_utilization": 1.0, **options})
    check_fit(model, settings, DeviceMemory(free if total is None else total, free))


def test_one_request_takes_its_blocks_and_the_null_block() -> None:
    model: Any = Model(0)
    assert request_bytes(model, 16, 1000) == 64 * PAGE
    assert request_bytes(model, 16, 1008) == 64 * PAGE
    assert request_bytes(model, 16, 1009) == 65 * PAGE


def test_a_model_fits_to_the_byte() -> None:
    check(MIB, MIB + 64 * PAGE)
    with pytest.raises(ResourceError, match="1 bytes too little"):
        check(MIB, MIB + 64 * PAGE - 1)


def test_the_error_names_needs_and_the_longest_context_that_fits() -> None:
    with pytest.raises(ResourceError) as caught:
        check(MIB, MIB + 33 * PAGE)
    text = str(caught.value)
    for words in (
        "weights take about 1.00 MiB",
        "max_model_len=1000 tokens takes 2.00 MiB",
        "together 3.00 MiB",
    ):
        assert words in text
    assert text.endswith("What would fit: 3.00 MiB of usable memory, or max_model_len=512.")
    check(MIB, MIB + 33 * PAGE, length=512)
    with pytest.raises(ResourceError):
        check(MIB, MIB + 33 * PAGE, length=513)


def test_weights_alone_too_large_says_that_no_context_helps() -> None:
    with pytest.raises(ResourceError, match="no max_model_len would help"):
        check(100 * MIB, 50 * MIB)
    with pytest.raises(ResourceError, match="no max_model_len would help"):
        check(MIB, MIB + PAGE)


def test_the_share_of_the_device_and_what_is_free_both_limit() -> None:
    needed = MIB + 64 * PAGE
    check(MIB, needed, total=2 * needed, gpu_memory_utilization=0.5)
    with pytest.raises(ResourceError):
        check(MIB, 2 * needed, total=2 * needed, gpu_memory_utilization=0.4)
    with pytest.raises(ResourceError):
        check(MIB, needed - 1, total=10 * needed, gpu_memory_utilization=0.9)


def test_a_cache_of_the_users_size_is_what_must_fit() -> None:
    check(MIB, MIB + 70 * PAGE, num_gpu_blocks_override=70)
    check(MIB, MIB + 64 * PAGE, kv_cache_memory_bytes=64 * PAGE)
    with pytest.raises(ResourceError, match="num_gpu_blocks_override=71 blocks"):
        check(MIB, MIB + 70 * PAGE, num_gpu_blocks_override=71)
    with pytest.raises(ResourceError, match=r"a KV cache of at most 2\.00 MiB"):
        check(MIB, MIB + 64 * PAGE, kv_cache_memory_bytes=64 * PAGE + 1)


def test_a_cache_too_small_for_one_request_is_refused_before_loading() -> None:
    for settings in ({"num_gpu_blocks_override": 63}, {"kv_cache_memory_bytes": 64 * PAGE - 1}):
        with pytest.raises(ResourceError, match="cannot hold one request of max_model_len=1000"):
            check(MIB, 100 * MIB, **settings)


def test_a_model_without_a_cache_needs_its_weights_only() -> None:
    model: Any = attrs.evolve(Model(MIB), facts=ModelFacts(1, 8, 10, 64, ()))
    check_fit(model, EngineConfig(model="m", gpu_memory_utilization=1.0), DeviceMemory(MIB, MIB))
