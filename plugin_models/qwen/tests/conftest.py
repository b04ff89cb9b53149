"""Random checkpoints of the family, as transformers saves them, and its answers to compare with."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from pegboard import LLM, RequestOutput, SamplingParams
from pegboard.api.model import ConfigInput
from pegboard_model_qwen.config import QwenConfig, read_config

BASE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.25,
    "attn_implementation": "eager",
}


class Checkpoints:
    """Writes random checkpoints and runs them."""

    @staticmethod
    def write(generation: str, settings: dict[str, Any], folder: Path, shards: int = 1) -> Any:
        """Save ``<generation>ForCausalLM`` with biases and norms drawn too; gives the model."""
        config = getattr(transformers, f"{generation}Config")(**{**BASE, **settings})
        torch.manual_seed(5)
        model = getattr(transformers, f"{generation}ForCausalLM")(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim == 1:
                    parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
        size = sum(tensor.nbytes for tensor in model.state_dict().values())
        model.save_pretrained(folder, max_shard_size=2 * size if shards == 1 else size // shards)
        found = len(list(folder.glob("*.safetensors")))
        assert found == 1 if shards == 1 else found >= shards
        return model

    @staticmethod
    def answers(path: Path, **options: Any) -> list[RequestOutput]:
        """Every prompt with the whole distribution of each position, and 12 greedy tokens."""
        draws = np.random.default_rng(8)
        prompts = [draws.integers(3, 96, size=length).tolist() for length in (23, 1, 90)]
        params = SamplingParams(
            temperature=0.0,
            max_tokens=12,
            ignore_eos=True,
            logprobs=-1,
            prompt_logprobs=-1,
            detokenize=False,
        )
        common = {"dtype": "float32", "num_gpu_blocks_override": 200, "max_num_seqs": 4}
        with LLM(str(path), **{**common, **options}) as llm:
            return llm.generate(prompts, params, use_tqdm=False)

    @staticmethod
    def change(folder: Path, **keys: Any) -> None:
        """Change keys of the saved configuration."""
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | keys))


@pytest.fixture(scope="session")
def checkpoints() -> type[Checkpoints]:
    return Checkpoints


@pytest.fixture(scope="session")
def read_hf() -> Callable[..., QwenConfig]:
    """Reads a configuration as it would come back from a file."""

    def read(raw: dict[str, Any], architecture: str = "Qwen3ForCausalLM") -> QwenConfig:
        return read_config(ConfigInput(json.loads(json.dumps(raw)), "hf", architecture))

    return read


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny products are quicker without a second thread, and the same every time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
