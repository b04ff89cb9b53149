"""Settings that depend on one another, and their other names."""

from __future__ import annotations

import math
from typing import Any

import attrs
import pytest

from pegboard.cli.options import engine_options
from pegboard.config.aliases import ALIASES
from pegboard.config.engine import EngineConfig
from pegboard.errors import ConfigError


def make(**options: Any) -> EngineConfig:
    return EngineConfig.from_options({"model": "x", **options})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"scheduling_policy": "random"}, "one of fcfs, priority, lpm"),
        ({"scheduling_policy": "lpm", "enable_prefix_caching": False}, "enable_prefix_caching"),
        ({"max_num_partial_prefills": 0}, "max_num_partial_prefills=0 .* at least 1"),
        ({"max_long_partial_prefills": 2}, r"at most max_num_partial_prefills \(1\)"),
        ({"long_prefill_token_threshold": -1}, "at least 0"),
        (
            {"long_prefill_token_threshold": 101, "max_model_len": 100},
            r"threshold=101 .* at most max_model_len \(100\)",
        ),
        (
            {"enable_chunked_prefill": False, "max_num_partial_prefills": 2},
            "max_num_partial_prefills=2 .*: 1 while enable_chunked_prefill is False",
        ),
        (
            {"enable_chunked_prefill": False, "long_prefill_token_threshold": 9},
            "long_prefill_token_threshold=9 .*: 0 while enable_chunked_prefill is False",
        ),
        ({"skip_tokenizer_init": 1}, "skip_tokenizer_init=1 .* True or False"),
        (
            {"skip_tokenizer_init": True, "tokenizer": "other"},
            "tokenizer='other' .* None while skip_tokenizer_init is True",
        ),
        ({"op_versions": "fast"}, "op_versions='fast' .* one of auto, plain"),
        ({"stream_interval": 0}, "stream_interval=0 .* at least 1"),
        ({"scheduler_reserve_full_isl": 1}, "True or False"),
        ({"scheduler_cls": ""}, "at least one character"),
        ({"max_num_seqs": 10**9}, "max_num_seqs=1000000000 .* 1 to 65536"),
        ({"max_num_batched_tokens": 10**9}, "max_num_batched_tokens=1000000000 .* 1 to 16777216"),
        ({"block_size": 16.0}, "block_size=16.0 .* one of 1, 2"),
        ({"block_size": True}, "block_size=True .* one of 1, 2"),
        ({"load_format": ["auto"]}, "load_format=.* one of auto"),
        ({"watermark": math.nan}, "watermark=nan"),
        ({"gpu_memory_utilization": math.nan}, "gpu_memory_utilization=nan"),
    ],
)
def test_a_bad_setting_is_refused_with_field_value_and_what_is_allowed(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        make(**options)


@pytest.mark.parametrize(
    ("alias", "value", "setting", "meant"),
    [
        ("chunked_prefill_size", 512, "max_num_batched_tokens", 512),
        ("context_length", 100, "max_model_len", 100),
        ("disable_log_stats", True, "stat_loggers", ()),
        ("disable_log_stats", False, "stat_loggers", None),
        ("disable_radix_cache", True, "enable_prefix_caching", False),
        ("disable_radix_cache", False, "enable_prefix_caching", True),
        ("max_running_requests", 3, "max_num_seqs", 3),
        ("mem_fraction_static", 0.5, "gpu_memory_utilization", 0.5),
        ("page_size", 32, "block_size", 32),
        ("random_seed", 7, "seed", 7),
        ("schedule_policy", "lpm", "scheduling_policy", "lpm"),
    ],
)
def test_an_alias_sets_what_it_stands_for(alias: str, value: Any, setting: str, meant: Any) -> None:
    assert getattr(make(**{alias: value}), setting) == meant
    assert engine_options([f"{alias.replace('_', '-')}={value}"], {}) == {setting: meant}


@pytest.mark.parametrize("name", ["watermark", "gpu_memory_utilization"])
def test_a_value_that_is_no_number_is_refused_as_such(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}='nan' is not allowed: it must be a number"):
        engine_options([f"{name}=nan"], {})


def test_a_setting_given_twice_must_have_one_value() -> None:
    assert engine_options(["watermark=0.5", "watermark=.5"], {}) == {"watermark": 0.5}
    with pytest.raises(
        ConfigError, match=r"watermark is given twice: 0\.5, and -o watermark=0\.25"
    ):
        engine_options(["watermark=0.5", "watermark=0.25"], {})


def test_every_alias_stands_for_a_setting_and_hides_none() -> None:
    settings = {field.name for field in attrs.fields(EngineConfig)}
    assert {alias.setting for alias in ALIASES.values()} <= settings
    assert not settings & set(ALIASES)


def test_a_setting_given_by_both_names_is_refused_even_with_equal_values() -> None:
    with pytest.raises(ConfigError, match="schedule_policy and scheduling_policy are two names"):
        make(schedule_policy="lpm", scheduling_policy="lpm")
    with pytest.raises(ConfigError, match="two names"):
        engine_options(["max-num-seqs=3", "max-running-requests=3"], {})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"disable_radix_cache": "yes"}, "disable_radix_cache='yes'"),
        ({"chunked_prefill_size": -1}, "enable_chunked_prefill=False"),
        ({"schedule_policy": "dfs-weight"}, "scheduling_policy='dfs-weight'"),
        ({"schedule_polic": "lpm"}, "did you mean 'schedule_policy'"),
    ],
)
def test_a_bad_alias_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make(**options)


@pytest.mark.parametrize("given", ["fp8", "fp8_e4m3", "float8_e4m3fn"])
def test_the_names_of_8_bit_floats_mean_one_dtype_of_the_cache(given: str) -> None:
    assert make(kv_cache_dtype=given).kv_cache_dtype == "float8_e4m3fn"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kv_cache_dtype": "fp8_e5m2"}, "kv_cache_dtype='fp8_e5m2' .* one of auto, float32"),
        ({"dtype": "fp8"}, "dtype='fp8' .* one of auto, float32, bfloat16, float16$"),
    ],
)
def test_other_8_bit_floats_and_products_of_them_are_refused(
    options: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        make(**options)
