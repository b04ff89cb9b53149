"""Small Llama checkpoints in each layout, loaded and run by the whole engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pegboard import LLM, SamplingParams
from pegboard.errors import CheckpointError, ConfigError, UnsupportedError
from pegboard_quant_fp8 import codes as plain

Write = Callable[..., Path]
PROMPT = [3, 17, 41, 8, 8, 29, 0, 11]
SCORED = SamplingParams(max_tokens=1, logprobs=-1, prompt_logprobs=-1, detokenize=False)
EIGHT = {"num_bits": 8, "type": "float", "symmetric": True}
TOKENS = {**EIGHT, "strategy": "token", "dynamic": True}
CHANNELS: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**EIGHT, "strategy": "channel", "dynamic": False},
            "input_activations": TOKENS,
            "output_activations": None,
        }
    },
}
HALVES = {**CHANNELS, "ignore": ["lm_head", "re:.*layers\\.1\\..*"]}
BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "tensor, dynamic": ("tensor", {"quant_method": "fp8", "activation_scheme": "dynamic"}),
    "tensor, static": ("static", {"quant_method": "fp8", "activation_scheme": "static"}),
    "small blocks": ("block", {**BLOCKS, "weight_block_size": [32, 64]}),
    "usual blocks": ("block", {**BLOCKS, "weight_block_size": [128, 128]}),
    "channel": ("channel", CHANNELS),
    "half of it": ("channel", HALVES),
    "its head too": ("channel", {**CHANNELS, "ignore": []}),
}


def is_linear(name: str) -> bool:
    return name.endswith("_proj.weight")


def coded(name: str, weight: torch.Tensor, kind: str, block: Any) -> dict[str, torch.Tensor]:
    """A weight as one of the layouts stores it."""
    base, codes = name.removesuffix(".weight"), torch.empty(weight.shape, dtype=plain.CODES)
    if kind == "block":
        scale = torch.empty(-(-weight.shape[0] // block[0]), -(-weight.shape[1] // block[1]))
        plain.round_blocks(weight, codes, scale, block)
        return {name: codes, f"{base}.weight_scale_inv": scale}
    if kind == "channel":
        scale = torch.empty(weight.shape[0])
        plain.round_rows(weight, codes, scale)
        return {name: codes, f"{base}.weight_scale": scale[:, None].bfloat16()}
    scale = weight.abs().amax() / 448
    made = {name: (weight / scale).to(plain.CODES), f"{base}.weight_scale": scale.reshape(1)}
    return made | ({f"{base}.input_scale": torch.tensor(0.02)} if kind == "static" else {})


def decoded(name: str, stored: dict[str, torch.Tensor], kind: str, block: Any) -> torch.Tensor:
    """What `coded` says, computed on its own."""
    base, codes = name.removesuffix(".weight"), stored[name].float()
    if kind != "block":
        return codes * stored[f"{base}.weight_scale"].float()
    scale = stored[f"{base}.weight_scale_inv"].repeat_interleave(block[0], 0)[: len(codes)]
    return codes * scale.repeat_interleave(block[1], 1)[:, : codes.shape[1]]


def logprobs(path: Path, **options: Any) -> torch.Tensor:
    """Of every token after every token of the prompt; float32 unless `options` say otherwise."""
    options = {"dtype": "float32", "max_model_len": 32, **options}
    with LLM(str(path), platform="cpu", kv_cache_memory_bytes=1 << 22, **options) as llm:
        (output,) = llm.generate([PROMPT], SCORED, use_tqdm=False)
    assert output.prompt_logprobs is not None and output.outputs[0].logprobs is not None
    entries = [*output.prompt_logprobs[1:], *output.outputs[0].logprobs]
    rows = [[entry[token].logprob for token in range(50)] for entry in entries if entry]
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_checkpoint_gives_what_its_dequantised_twin_gives(
    layout: str, write_llama: Write, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    kind, config = LAYOUTS[layout]
    block = config.get("weight_block_size")
    chosen = [name for name in weights if is_linear(name)]
    if layout == "half of it":
        chosen = [name for name in chosen if "layers.1." not in name]
    stored = {
        key: t for name in chosen for key, t in coded(name, weights[name], kind, block).items()
    }
    twin = {name: decoded(name, stored, kind, block) for name in chosen}
    path = write_llama(tmp_path / "coded", stored, {"quantization_config": config})
    found = logprobs(path)
    expected = logprobs(write_llama(tmp_path / "twin", twin))
    assert torch.allclose(found, expected, atol=1e-5)
    assert not torch.allclose(found, logprobs(write_llama(tmp_path / "plain")), atol=1e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_plain_checkpoint_is_rounded_when_the_user_asks(
    dtype: str, write_llama: Write, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    path = write_llama(tmp_path / "plain", dtype=torch.bfloat16)
    twin = {}
    for name in filter(is_linear, weights):
        stored = coded(name, weights[name].bfloat16().float(), "channel", None)
        codes = stored[name].float()
        scale = weights[name].bfloat16().float().abs().amax(1, keepdim=True) / 448
        twin[name] = codes * scale
    rest = {name: t.bfloat16().float() for name, t in weights.items() if name not in twin}
    expected = logprobs(write_llama(tmp_path / "twin", twin | rest))
    found = logprobs(path, dtype=dtype, quantization="fp8")
    # In bfloat16 each of some twenty roundings on the way to a logit is at most 2^-8 of a value.
    assert torch.allclose(found, expected, atol={"float32": 1e-4, "bfloat16": 0.25}[dtype])
    plain_error = (found - logprobs(path, dtype="float32")).abs().max()
    assert plain_error > 1e-2


@pytest.mark.parametrize(
    "config", [None, CHANNELS, {**BLOCKS, "weight_block_size": [128, 128]}], ids=str
)
def test_random_weights_are_rounded_too(
    config: dict[str, Any] | None, write_llama: Write, tmp_path: Path
) -> None:
    keys = {} if config is None else {"quantization_config": config}
    path = write_llama(tmp_path, config=keys)
    found = logprobs(path, load_format="dummy", quantization="fp8")
    assert bool(found.isfinite().all())


@pytest.mark.parametrize("layout", ["tensor, dynamic", "tensor, static", "small blocks", "channel"])
def test_a_missing_scale_is_named(
    layout: str, write_llama: Write, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    kind, config = LAYOUTS[layout]
    block = config.get("weight_block_size")
    stored: dict[str, Any] = {}
    for name in filter(is_linear, weights):
        stored |= coded(name, weights[name], kind, block)
    lost = next(key for key in stored if "layers.1.self_attn.k_proj" in key and "scale" in key)
    path = write_llama(tmp_path, {**stored, lost: None}, {"quantization_config": config})
    with pytest.raises(CheckpointError, match=f"1 tensor missing: '{lost}'"):
        logprobs(path)


def test_every_stored_tensor_is_accounted_for(
    write_llama: Write, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    stored: dict[str, Any] = {}
    for name in filter(is_linear, weights):
        stored |= coded(name, weights[name], "static", None)
    kind = {"quantization_config": LAYOUTS["tensor, dynamic"][1]}
    with pytest.raises(CheckpointError, match=r"14 tensors not expected.*input_scale"):
        logprobs(write_llama(tmp_path, stored, kind))


def test_a_scale_of_the_wrong_shape_is_named(
    write_llama: Write, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    stored: dict[str, Any] = {}
    for name in filter(is_linear, weights):
        stored |= coded(name, weights[name], "channel", None)
    stored["model.layers.0.mlp.down_proj.weight_scale"] = torch.ones(63, 1)
    path = write_llama(tmp_path, stored, {"quantization_config": CHANNELS})
    with pytest.raises(CheckpointError, match=r"down_proj.weight_scale' has shape \[63, 1\]"):
        logprobs(path)


def test_codes_without_a_configuration_are_refused(
    write_llama: Write, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    name = "model.layers.0.self_attn.o_proj.weight"
    path = write_llama(tmp_path, coded(name, weights[name], "tensor", None))
    with pytest.raises(UnsupportedError, match=r"o_proj.weight' .* no quantization_config"):
        logprobs(path)


def test_other_numbers_in_the_same_wrapping_are_refused_by_name(
    write_llama: Write, tmp_path: Path
) -> None:
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int"}}
    config = {"quant_method": "compressed-tensors", "config_groups": {"g": group}}
    path = write_llama(tmp_path, config={"quantization_config": config})
    with pytest.raises(UnsupportedError, match=r"config_groups.g.weights has num_bits=4"):
        logprobs(path)


def test_user_and_checkpoint_must_agree(write_llama: Write, tmp_path: Path) -> None:
    path = write_llama(tmp_path, config={"quantization_config": CHANNELS})
    with pytest.raises(ConfigError, match="quantization='gguf' is not allowed"):
        logprobs(path, quantization="gguf")
