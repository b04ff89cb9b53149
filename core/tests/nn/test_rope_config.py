"""Rope settings in every form, and the frequencies that follow from them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from pegboard.errors import ConfigError, UnsupportedError
from pegboard.nn import RopeConfig, read_rope
from pegboard.nn.rope import inverse_frequencies

SCALED: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"rope_theta": None},
        {"rope_theta": 10000, "rope_scaling": None},
        {"rope_scaling": {"type": "default"}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        {"rope_parameters": {"rope_theta": 10000.0}, "rope_scaling": {"rope_theta": 10000.0}},
    ],
)
def test_forms_of_the_default_are_equal(raw: dict[str, Any]) -> None:
    assert read_rope(raw) == RopeConfig()


def test_each_layer_type_has_its_own_settings_in_the_nested_form() -> None:
    raw = {
        "rope_parameters": {
            "full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 2.0},
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        }
    }
    assert read_rope(raw) == RopeConfig(1e6, "linear", 2.0)
    assert read_rope(raw, layer_type="sliding_attention") == RopeConfig(1e4)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"rope_scaling": {"type": "helix"}}, "'helix'"),
        ({"rope_scaling": {"factor": 2.0}}, "no rope_type"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor=0"),
        ({"rope_scaling": {"type": "linear", "factor": float("nan")}}, "factor=nan"),
        ({"rope_scaling": {"type": "linear", "factor": 2, "speed": 1}}, "speed"),
        ({"rope_scaling": {"type": "default", "factor": 2.0}}, r"no settings \['factor'\]"),
        ({"rope_scaling": {"type": "linear", "rope_type": "llama3", "factor": 2}}, "disagree"),
        ({"rope_scaling": "linear"}, "rope_scaling='linear'"),
        ({"rope_theta": "big"}, "rope_theta='big'"),
        ({"rope_scaling": {**SCALED, "high_freq_factor": 1.0}}, "high_freq_factor=1.0"),
        ({"rope_scaling": {**SCALED, "original_max_position_embeddings": None}}, "is missing"),
        ({"rope_parameters": {"rope_theta": 1.0}, "rope_scaling": SCALED}, "disagree"),
        ({"rope_parameters": {"full_attention": {}, "rope_theta": 1.0}}, "per layer type"),
        ({"rope_parameters": {"sliding_attention": {}}}, "'full_attention'"),
        ({"rope_parameters": {"full_attention": 3}}, "not a mapping"),
    ],
)
def test_what_is_not_understood_is_an_error(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_rope(raw)


@pytest.mark.parametrize("kind", ["yarn", "dynamic", "longrope", "su"])
def test_kinds_that_are_not_built_are_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedError, match=f"'{kind}' is not supported"):
        read_rope({"rope_scaling": {"type": kind, "factor": 2.0}})


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "default", "rope_theta": 10000.0},
        {"rope_type": "default", "rope_theta": 5e5},
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        {**SCALED, "rope_theta": 500000.0},
        {**SCALED, "rope_theta": 10000.0, "factor": 32.0, "original_max_position_embeddings": 64},
    ],
)
def test_frequencies_equal_those_of_transformers(parameters: dict[str, Any]) -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = llama.LlamaConfig(
        hidden_size=256, num_attention_heads=2, head_dim=128, rope_parameters=parameters
    )
    wanted = llama.LlamaRotaryEmbedding(config).inv_freq
    found = inverse_frequencies(read_rope({"rope_parameters": parameters}), 128)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0)


def test_settings_are_read_without_torch() -> None:
    names = "ConfigReader, RopeConfig, read_rope"
    code = f"import sys; from pegboard.nn import {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
