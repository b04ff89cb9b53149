"""Checkpoints as transformers writes them: one file or several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pegboard.api.model import WeightMap, WeightRule
from pegboard.api.quant import ParamSpec
from pegboard.weights import ResolvedWeights, load_weights
from pegboard.weights.safetensors_source import open_directory

transformers = pytest.importorskip("transformers")


def tiny_llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_bias=True,
    )
    return transformers.LlamaForCausalLM(config)


def shard_size(model: Any, shards: int) -> int:
    """Bytes per file that give so many files (found by trial: tensors are not split)."""
    sizes = [tensor.nbytes for tensor in model.state_dict().values()]
    for limit in range(max(sizes), sum(sizes) + 1, 64):
        if _files(sizes, limit) == shards:
            return limit
    raise AssertionError(f"no limit gives {shards} files")


def _files(sizes: list[int], limit: int) -> int:
    count, room = 1, limit
    for size in sizes:
        if size > room:
            count, room = count + 1, limit
        room -= size
    return count


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_every_tensor_of_a_saved_model_arrives(shards: int, tmp_path: Path, toys: Any) -> None:
    model = tiny_llama()
    model.save_pretrained(tmp_path, max_shard_size=shard_size(model, shards))
    assert len(list(tmp_path.glob("*.safetensors"))) == shards
    checkpoint = open_directory(str(tmp_path))
    assert checkpoint.architectures == ("LlamaForCausalLM",)
    state = model.state_dict()
    modules: dict[str, list[Any]] = {name.rpartition(".")[0]: [] for name in state}
    for name, tensor in state.items():
        module, _, suffix = name.rpartition(".")
        modules[module].append((0, ParamSpec(suffix, tuple(tensor.shape), "float32")))
    receiver = toys.model(*modules.items())
    weight_map = WeightMap(tuple(WeightRule(module, module) for module in modules))
    load_weights(receiver, ResolvedWeights(weight_map, checkpoint, 3), torch.device("cpu"))
    got = {
        f"{leaf.prefix}.{name}": tensor
        for leaf in receiver
        for name, (tensor,) in leaf.runtime.items()
    }
    assert got.keys() == state.keys()
    for name, tensor in state.items():
        assert torch.equal(got[name], tensor), name
