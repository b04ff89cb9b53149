"""A KV cache of 8-bit floats: twice the room, nearly the same answers, scales from checkpoints."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pegboard import LLM, RequestOutput, SamplingParams
from pegboard.errors import CheckpointError, UnsupportedError
from pegboard.testing.checkpoints import write_tiny_model
from pegboard_testkit.alone import compare_with_alone
from pegboard_testkit.near_tie import assert_same

pytestmark = pytest.mark.usefixtures("one_thread")

CONTEXT, VOCABULARY = 256, 96
PROMPT = np.random.default_rng(5).integers(3, VOCABULARY, size=90).tolist()
NEAR = {"gap": 0.05, "logprob": 0.05}
"""A number near the middle of two 8-bit floats may become either, a sixteenth apart at most, as the
batch around it moves its last bits."""


def open_engine(path: Path, **options: Any) -> LLM:
    common = {"dtype": "float32", "max_model_len": CONTEXT, "max_num_seqs": 8}
    return LLM(str(path), **{**common, "kv_cache_dtype": "fp8", **options})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), seed=3, scale=0.15)


@pytest.fixture(scope="module")
def alone(tiny: Path) -> Iterator[LLM]:
    options = {"enable_prefix_caching": False, "num_gpu_blocks_override": 64}
    with open_engine(tiny, max_num_batched_tokens=CONTEXT, **options) as llm:
        yield llm


def logprobs(path: Path, **options: Any) -> torch.Tensor:
    """Of every token after every token of the prompt, which runs in chunks: float64 [n, vocab]."""
    params = SamplingParams(max_tokens=1, prompt_logprobs=-1, detokenize=False)
    settings = {"num_gpu_blocks_override": 64, "max_num_batched_tokens": 32, **options}
    with open_engine(path, **settings) as llm:
        (output,) = llm.generate([PROMPT], params, use_tqdm=False)
    assert output.prompt_logprobs is not None
    rows = [entry for entry in output.prompt_logprobs if entry]
    return torch.tensor(
        [[row[token].logprob for token in range(len(row))] for row in rows], dtype=torch.float64
    )


def divergence(exact: torch.Tensor, found: torch.Tensor) -> float:
    """Mean KL divergence in nats."""
    return (exact.exp() * (exact - found)).sum(1).mean().item()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_twice_as_many_tokens_fit(tiny: Path, dtype: str) -> None:
    blocks = {}
    for asked in ("auto", "fp8"):
        options = {"dtype": dtype, "kv_cache_memory_bytes": 1 << 20, "kv_cache_dtype": asked}
        with open_engine(tiny, **options) as llm:
            blocks[asked] = llm.cache.num_blocks
    assert blocks["fp8"] == 2 * blocks["auto"]


def test_answers_are_nearly_those_of_a_cache_of_wide_floats(tiny: Path) -> None:
    exact, found = logprobs(tiny, kv_cache_dtype="auto"), logprobs(tiny)
    assert 1e-7 < divergence(exact, found) < 0.01


def generate(path: Path, lengths: list[int], **options: Any) -> tuple[list[RequestOutput], Any]:
    draws = np.random.default_rng(7)
    prompts = [draws.integers(3, 259, size=length).tolist() for length in lengths]
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, logprobs=0)
    with open_engine(path, **options) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        outputs += llm.generate(prompts, params, use_tqdm=False)
        llm.engine.core.scheduler.check()
        return outputs, llm.engine.stats()


@pytest.mark.parametrize("scarce", [True, False])
def test_schedules_give_the_tokens_of_each_request_alone(
    tiny: Path, alone: LLM, scarce: bool
) -> None:
    """Chunks, hits and preemptions, on numbers that were rounded when they were stored."""
    room = {"num_gpu_blocks_override": 17 if scarce else 64, "max_num_batched_tokens": 32}
    outputs, stats = generate(tiny, [20, 70, 64, 90, 33], **room)
    assert stats.preemptions > 0 if scarce else stats.cache.hit_tokens > 0
    found = compare_with_alone(alone, outputs)
    assert_same(found, **NEAR)


LARGE = 2.0**12


@pytest.fixture(scope="module")
def large_keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose keys and values lie far beyond what 8-bit floats can hold without scales."""
    folder = tmp_path_factory.mktemp("large")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
    }
    (folder / "config.json").write_text(json.dumps(config))
    draw = torch.Generator().manual_seed(2)
    sizes = {"model.embed_tokens": (VOCABULARY, 32), "lm_head": (VOCABULARY, 32), "model.norm": ()}
    factors = {"k_proj": LARGE, "q_proj": 1 / LARGE, "v_proj": LARGE, "o_proj": 1 / LARGE}
    for layer in range(2):
        base = f"model.layers.{layer}"
        for name, rows in (("q_proj", 32), ("k_proj", 16), ("v_proj", 16), ("o_proj", 32)):
            sizes[f"{base}.self_attn.{name}"] = (rows, 32)
        for name, shape in (("gate", (48, 32)), ("up", (48, 32)), ("down", (32, 48))):
            sizes[f"{base}.mlp.{name}_proj"] = shape
        sizes |= {f"{base}.{name}": () for name in ("input_layernorm", "post_attention_layernorm")}
    tensors = {
        f"{name}.weight": torch.randn(shape, generator=draw)
        * 0.25
        * factors.get(name.rpartition(".")[2], 1.0)
        if shape
        else torch.ones(32)
        for name, shape in sizes.items()
    }
    save_file(tensors, folder / "model.safetensors")
    return folder


def with_scales(plain: Path, folder: Path, scales: dict[str, torch.Tensor]) -> Path:
    """A copy with further tensors in each layer's attention."""
    shutil.copytree(plain, folder)
    tensors = load_file(folder / "model.safetensors")
    for layer in range(2):
        for name, scale in scales.items():
            tensors[f"model.layers.{layer}.self_attn.{name}"] = scale.clone()
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("names", "shape", "dtype"),
    [
        (("k_scale", "v_scale"), (), torch.float32),
        (("k_scale", "v_scale"), (1,), torch.bfloat16),
        (("k_proj.k_scale", "v_proj.v_scale"), (1,), torch.float32),
    ],
)
def test_scales_of_a_checkpoint_bring_large_keys_and_values_into_range(
    names: tuple[str, str],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    large_keys: Path,
    tmp_path: Path,
) -> None:
    key, value = (torch.full(shape, number, dtype=dtype) for number in (2.0**7, 2.0**6))
    scaled = with_scales(large_keys, tmp_path / "scaled", {names[0]: key, names[1]: value})
    exact = logprobs(large_keys, kv_cache_dtype="auto")
    assert torch.equal(logprobs(scaled, kv_cache_dtype="auto"), exact), "nothing to scale there"
    assert divergence(exact, logprobs(large_keys)) > 0.1, "without scales they are cut off"
    assert divergence(exact, logprobs(scaled)) < 0.02


@pytest.mark.parametrize(
    ("scale", "error", "message"),
    [
        (torch.tensor(0.0), CheckpointError, "k_scale=0.0 is not allowed: a finite number above 0"),
        (torch.tensor(float("nan")), CheckpointError, "k_scale=nan"),
        (torch.ones(2, 1), UnsupportedError, r"self_attn.k_scale' has shape \[2, 1\]"),
    ],
)
def test_scales_that_are_not_one_positive_number_are_refused(
    scale: torch.Tensor, error: type[Exception], message: str, large_keys: Path, tmp_path: Path
) -> None:
    folder = with_scales(large_keys, tmp_path / "bad", {"k_scale": scale})
    with pytest.raises(error, match=message):
        open_engine(folder, num_gpu_blocks_override=64)
