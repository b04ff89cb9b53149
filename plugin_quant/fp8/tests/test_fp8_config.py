"""What a checkpoint's configuration says, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from pegboard.errors import ConfigError, UnsupportedError
from pegboard_quant_fp8.config import read_plan
from pegboard_quant_fp8.schemes import Scheme

WEIGHTS = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
CACHE = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
TOKENS = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}


def compressed(group: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    usual = {"targets": ["Linear"], "weights": WEIGHTS, "input_activations": TOKENS}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {**usual, **(group or {})}},
        **keys,
    }


def scheme(raw: dict[str, Any], module: str = "model.layers.0.mlp.up_proj") -> Scheme | None:
    plan = read_plan(raw)
    assert plan is not None
    return plan.scheme(module, "linear")


@pytest.mark.parametrize(
    "raw",
    [
        {"quant_method": "fp8", "kv_cache_scheme": "static"},
        compressed(kv_cache_scheme=CACHE),
        compressed(kv_cache_scheme=None),
    ],
)
def test_scales_of_keys_and_values_change_nothing_for_weights(raw: dict[str, Any]) -> None:
    without = {key: value for key, value in raw.items() if key != "kv_cache_scheme"}
    assert scheme(raw) == scheme(without)


def test_nothing_said_is_no_plan() -> None:
    assert read_plan({}) is None


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, Scheme("tensor", "dynamic")),
        ({"activation_scheme": "static", "weight_block_size": None}, Scheme("tensor", "static")),
        (
            {"activation_scheme": "dynamic", "weight_block_size": [128, 64], "fmt": "e4m3"},
            Scheme("block", "dynamic", (128, 64)),
        ),
    ],
)
def test_the_short_form_has_one_scheme(keys: dict[str, Any], expected: Scheme) -> None:
    assert scheme({"quant_method": "fp8", **keys}) == expected


@pytest.mark.parametrize(
    ("weights", "activations", "expected"),
    [
        ({}, TOKENS, Scheme("channel", "dynamic")),
        ({}, None, Scheme("channel", "none")),
        ({"strategy": "tensor"}, {**TOKENS, "strategy": "tensor"}, Scheme("tensor", "dynamic")),
        (
            {"strategy": "tensor"},
            {**TOKENS, "strategy": "tensor", "dynamic": False},
            Scheme("tensor", "static"),
        ),
        (
            {"strategy": "block", "block_structure": "128x128"},
            {**TOKENS, "strategy": "group", "group_size": 128},
            Scheme("block", "dynamic", (128, 128)),
        ),
    ],
)
def test_the_long_form_has_a_scheme_per_group(
    weights: dict[str, Any], activations: dict[str, Any] | None, expected: Scheme
) -> None:
    group = {"weights": {**WEIGHTS, **weights}, "input_activations": activations}
    assert scheme(compressed(group)) == expected


@pytest.mark.parametrize(
    ("ignored", "module", "left"),
    [
        ("lm_head", "lm_head", True),
        ("model.layers.1", "model.layers.1.mlp.up_proj", True),
        ("model.layers.1", "model.layers.10.mlp.up_proj", False),
        ("gate", "model.layers.0.mlp.gate", True),
        ("gate", "model.layers.0.mlp.gate_proj", False),
        ("re:.*down_proj", "model.layers.0.mlp.down_proj", True),
        ("re:.*down_proj", "model.layers.0.mlp.up_proj", False),
    ],
)
@pytest.mark.parametrize("key", ["modules_to_not_convert", "ignored_layers"])
def test_names_in_the_short_form_mean_whole_parts(
    key: str, ignored: str, module: str, left: bool
) -> None:
    found = scheme({"quant_method": "fp8", key: [ignored]}, module)
    assert (found is None) is left


@pytest.mark.parametrize(
    ("ignored", "module", "left"),
    [
        ("lm_head", "lm_head", True),
        ("up_proj", "model.layers.0.mlp.up_proj", False),
        ("re:.*self_attn", "model.layers.0.self_attn.q_proj", True),
        ("re:self_attn", "model.layers.0.self_attn.q_proj", False),
        ("Linear", "anything", True),
    ],
)
def test_names_in_the_long_form_are_whole_or_expressions(
    ignored: str, module: str, left: bool
) -> None:
    assert (scheme(compressed(ignore=[ignored]), module) is None) is left


def test_a_target_by_name_goes_before_one_by_class() -> None:
    usual = {"targets": ["Linear"], "weights": WEIGHTS, "input_activations": TOKENS}
    special = {"targets": ["re:.*v_proj"], "weights": {**WEIGHTS, "strategy": "tensor"}}
    plan = read_plan(compressed(config_groups={"a": usual, "b": special}))
    assert plan is not None
    assert plan.scheme("model.layers.0.self_attn.v_proj", "linear") == Scheme("tensor", "none")
    assert plan.scheme("model.layers.0.self_attn.k_proj", "linear") == Scheme()
    assert plan.scheme("model.embed_tokens", "embedding") is None
    assert plan.usual() == Scheme()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"activation_scheme": "sometimes"}, "activation_scheme='sometimes'"),
        ({"activation_scheme": 3}, "activation_scheme=3"),
        ({"weight_block_size": [128]}, r"weight_block_size=\[128\]"),
        ({"weight_block_size": [128, 0]}, r"weight_block_size=\[128, 0\]"),
        ({"weight_block_size": [128, True]}, "two sizes"),
        ({"weight_block_size": {"a": 1}}, "two sizes"),
        ({"ignored_layers": "lm_head"}, "ignored_layers='lm_head'"),
        ({"modules_to_not_convert": [1]}, "modules_to_not_convert"),
        ({"ignored_layers": ["re:("]}, r"'re:\(' is no regular expression"),
    ],
)
def test_a_malformed_short_form_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_plan({"quant_method": "fp8", **keys})


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (compressed(config_groups=None), "config_groups=None"),
        (compressed(config_groups={}), "config_groups"),
        (compressed(config_groups={"a": []}), "config_groups.a"),
        (compressed({"targets": []}), "targets"),
        (compressed({"targets": "Linear"}), "targets"),
        (compressed({"weights": None}), "group_0.weights=None"),
        (compressed({"weights": {**WEIGHTS, "strategy": "block"}}), "block_structure"),
        (compressed(ignore=["re:*"]), "no regular expression"),
    ],
)
def test_a_malformed_long_form_is_refused(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_plan(raw)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt='e5m2'"),
        ({"quant_method": "fp8", "kv_cache_scheme": "fp8"}, "kv_cache_scheme"),
        (
            {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": [8, 8]},
            "static",
        ),
        (compressed(format="pack-quantized"), "format='pack-quantized'"),
        (compressed(quantization_status="calibration"), "quantization_status='calibration'"),
        (compressed(kv_cache_scheme={"num_bits": 8}), "kv_cache_scheme"),
        (compressed(kv_cache_scheme={**CACHE, "strategy": "attn_head"}), "attn_head"),
        (compressed(kv_cache_scheme={**CACHE, "dynamic": True}), "dynamic scales"),
        (compressed(sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config"),
        (compressed(transform_config={"a": 1}), "transform_config"),
        (compressed({"weights": {**WEIGHTS, "num_bits": 4}}), "num_bits=4"),
        (compressed({"weights": {**WEIGHTS, "type": "int"}}), "type='int'"),
        (compressed({"weights": {**WEIGHTS, "strategy": "group"}}), "strategy='group'"),
        (compressed({"weights": {**WEIGHTS, "symmetric": False}}), "symmetric=False"),
        (compressed({"input_activations": {**TOKENS, "num_bits": 4}}), "input_activations has"),
        (compressed({"input_activations": {**TOKENS, "dynamic": "local"}}), "dynamic='local'"),
        (compressed({"input_activations": {**TOKENS, "dynamic": False}}), "strategy='token'"),
        (compressed({"output_activations": TOKENS}), "output_activations"),
    ],
)
def test_what_is_not_served_is_refused_by_name(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        read_plan(raw)
