"""The mode of recurrent states: what the family says, what the user says, and prefix caching."""

from __future__ import annotations

from typing import Any

import pytest

from pegboard.api.kv import FullAttentionSpec, KVSlot, RecurrentSpec, StateTensor
from pegboard.api.model import ModelFacts
from pegboard.config import EngineConfig
from pegboard.config.fit import DeviceMemory, check_fit, request_bytes
from pegboard.config.model import apply_cache_settings
from pegboard.errors import ConfigError, ResourceError

STATES = (StateTensor("conv", (3, 5), "auto"), StateTensor("memory", (740,), "float32"))
FULL = FullAttentionSpec(1, 8, "float32")


def facts(**spec: Any) -> ModelFacts:
    slots = [KVSlot(i, "state", RecurrentSpec(STATES, **spec)) for i in range(4)]
    return ModelFacts(5, 8, 10, 4096, (*slots, KVSlot(4, "self", FULL)))


def settled(own: str, **options: Any) -> RecurrentSpec:
    config = EngineConfig(model="m", **options)
    found = apply_cache_settings(facts(cache=own), config, "bfloat16", 64).kv_slots[0].spec
    assert isinstance(found, RecurrentSpec)
    return found


@pytest.mark.parametrize("own", ["none", "align", "all"])
def test_the_users_mode_wins_over_the_familys(own: str) -> None:
    assert settled(own).cache == own
    for asked in ("none", "align", "all"):
        assert settled(own, mamba_cache_mode=asked).cache == asked


def test_without_prefix_caching_no_state_is_kept() -> None:
    assert settled("align", enable_prefix_caching=False).cache == "none"
    assert settled("all", mamba_cache_mode="all", enable_prefix_caching=False).cache == "none"


def test_only_states_that_leave_their_dtype_open_take_the_caches() -> None:
    assert [state.dtype for state in settled("align").states] == ["bfloat16", "float32"]


def test_states_stay_in_the_compute_dtype_where_keys_and_values_have_8_bits() -> None:
    states = settled("align", kv_cache_dtype="fp8").states
    assert [state.dtype for state in states] == ["bfloat16", "float32"]
    assert settled("align", kv_cache_dtype="float16").states[0].dtype == "float16"


def test_an_unknown_mode_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"mamba_cache_mode='some'.*auto, none, align, all"):
        EngineConfig(model="m", mamba_cache_mode="some")


class Model:
    """As much of a resolved model as the arithmetic needs."""

    weight_bytes = 10_000
    max_model_len = 960

    def __init__(self, mode: str) -> None:
        config = EngineConfig(model="m")
        self.facts = apply_cache_settings(facts(cache=mode), config, "float32", 64)


@pytest.mark.parametrize(("mode", "blocks"), [("none", 24), ("align", 28), ("all", 36)])
def test_whether_a_hybrid_fits_is_told_to_the_byte(mode: str, blocks: int) -> None:
    model: Any = Model(mode)
    page = 48 * 64  # a state of 3,024 bytes needs the room of 48 tokens
    assert request_bytes(model, 16, 960, 128) == (blocks + 1) * page
    config = EngineConfig(model="m", gpu_memory_utilization=0.5, max_num_batched_tokens=128)
    enough = 2 * (10_000 + (blocks + 1) * page)
    check_fit(model, config, DeviceMemory(enough, enough))
    with pytest.raises(ResourceError, match=r"2 bytes|1 bytes") as caught:
        check_fit(model, config, DeviceMemory(enough - 2, enough))
    assert str(caught.value).endswith(f"or max_model_len={19 * 48}.")


def test_overrides_are_counted_in_a_hybrids_blocks() -> None:
    model: Any = Model("align")
    config = EngineConfig(model="m", num_gpu_blocks_override=100, gpu_memory_utilization=1.0)
    enough = 10_000 + 100 * 48 * 64
    check_fit(model, config, DeviceMemory(enough, enough))
    with pytest.raises(ResourceError, match="num_gpu_blocks_override=100 blocks"):
        check_fit(model, config, DeviceMemory(enough - 1, enough - 1))
