"""Kernels run on the GPU where there is one, else on the host by Triton's interpreter."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from pegboard_testkit.interpreter import interpret_without_gpu

# Triton asks when a kernel is defined, so this stands before any import of one.
interpret_without_gpu()


@pytest.fixture
def device() -> torch.device:
    return torch.device("cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(11)


@pytest.fixture
def write_llama() -> Callable[..., Path]:
    """Writes a Llama checkpoint of two layers; `tensors` replace or join the plain ones, None takes
    one out."""
    from safetensors.torch import save_file

    def write(
        folder: Path,
        tensors: Mapping[str, torch.Tensor | None] | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        settings = {**LLAMA, "dtype": str(dtype).removeprefix("torch."), **(config or {})}
        (folder / "config.json").write_text(json.dumps(settings))
        plain = {name: value.to(dtype) for name, value in llama_weights().items()}
        kept = {**plain, **(tensors or {})}
        wanted = {name: value for name, value in kept.items() if value is not None}
        save_file(wanted, str(folder / "model.safetensors"))
        return folder

    return write


LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 50,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


def llama_weights() -> dict[str, torch.Tensor]:
    """Float32 weights of the checkpoint, always the same."""
    draw = torch.Generator().manual_seed(3)
    shapes = {"model.embed_tokens": (50, 64), "lm_head": (50, 64)}
    for layer in range(2):
        base = f"model.layers.{layer}"
        shapes |= {
            f"{base}.self_attn.q_proj": (64, 64),
            f"{base}.self_attn.k_proj": (32, 64),
            f"{base}.self_attn.v_proj": (32, 64),
            f"{base}.self_attn.o_proj": (64, 64),
            f"{base}.mlp.gate_proj": (160, 64),
            f"{base}.mlp.up_proj": (160, 64),
            f"{base}.mlp.down_proj": (64, 160),
        }
    made = {
        f"{name}.weight": torch.randn(shape, generator=draw) * 0.2 for name, shape in shapes.items()
    }
    norms = ["model.norm"]
    for layer in range(2):
        norms += [
            f"model.layers.{layer}.{name}"
            for name in ("input_layernorm", "post_attention_layernorm")
        ]
    return made | {f"{name}.weight": torch.ones(64) for name in norms}


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    return llama_weights()
