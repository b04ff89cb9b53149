"""Llama checkpoints with something missing, added or broken (O34): refused before anything is
served, by file and tensor, or loaded right; never with zeros in place of weights."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from pegboard import LLM, SamplingParams
from pegboard.errors import CheckpointError

pytestmark = pytest.mark.usefixtures("one_thread")

Tensors = dict[str, torch.Tensor]
HEAD = "lm_head.weight"
MIDDLE = "model.layers.1.mlp.up_proj.weight"
FILE = "model.safetensors"
PROMPT = [5, 9, 33, 17, 60]


def save_model(folder: Path, *, tied: bool, shard_size: int | str = "1GB") -> Path:
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
        tie_word_embeddings=tied,
    )
    torch.manual_seed(2)
    transformers.LlamaForCausalLM(config).save_pretrained(folder, max_shard_size=shard_size)
    return folder


@pytest.fixture
def untied(tmp_path: Path) -> Path:
    return save_model(tmp_path / "untied", tied=False)


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    return save_model(tmp_path / "tied", tied=True)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    folder = save_model(tmp_path / "sharded", tied=False, shard_size=20_000)
    assert len(list(folder.glob("*.safetensors"))) >= 3
    return folder


def opened(folder: Path, dtype: str = "float32") -> LLM:
    return LLM(str(folder), dtype=dtype, num_gpu_blocks_override=16, max_num_seqs=4)


def scores(folder: Path, dtype: str = "float32") -> list[float]:
    """Log-probability of each prompt token."""
    params = SamplingParams(max_tokens=0, prompt_logprobs=0)
    with opened(folder, dtype) as llm:
        (output,) = llm.generate(PROMPT, params, use_tqdm=False)
    assert output.prompt_logprobs is not None
    pairs = zip(output.prompt_logprobs, PROMPT, strict=True)
    return [entry[token].logprob for entry, token in pairs if entry]


def edit(folder: Path, change: Callable[[Tensors], Any]) -> None:
    """Change the tensors of the only file."""
    tensors = load_file(folder / FILE)
    change(tensors)
    save_file(tensors, folder / FILE, metadata={"format": "pt"})


def test_o34a_a_tied_model_without_a_head_uses_its_embedding(tied: Path) -> None:
    assert HEAD not in load_file(tied / FILE)
    with torch.no_grad():
        model = transformers.AutoModelForCausalLM.from_pretrained(tied, dtype=torch.float32)
        rows = torch.log_softmax(model(torch.tensor([PROMPT])).logits[0], -1)
    expected = [float(rows[i, token]) for i, token in enumerate(PROMPT[1:])]
    assert scores(tied) == pytest.approx(expected, abs=1e-4)


def test_o34b_a_tied_model_with_a_head_in_the_file_loads_tied(tied: Path) -> None:
    expected = scores(tied)
    edit(tied, lambda tensors: tensors.update({HEAD: torch.zeros(64, 32)}))
    assert scores(tied) == expected


def test_o34c_an_untied_model_without_a_head_is_refused(untied: Path) -> None:
    edit(untied, lambda tensors: tensors.pop(HEAD))
    with pytest.raises(CheckpointError, match=HEAD) as caught:
        opened(untied)
    assert str(untied) in str(caught.value)


def test_o34c_any_other_missing_tensor_is_named(untied: Path) -> None:
    edit(untied, lambda tensors: tensors.pop(MIDDLE))
    with pytest.raises(CheckpointError, match=MIDDLE) as caught:
        opened(untied)
    assert str(untied) in str(caught.value)


def test_o34d_a_missing_shard_is_named(sharded: Path) -> None:
    shard = sorted(sharded.glob("*.safetensors"))[1]
    first = next(iter(load_file(shard)))
    shard.unlink()
    with pytest.raises(CheckpointError) as caught:
        opened(sharded)
    assert shard.name in str(caught.value)
    assert first in str(caught.value)


def test_o34e_a_file_cut_by_100_bytes_is_refused_with_file_and_tensor(untied: Path) -> None:
    path = untied / FILE
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError) as caught:
        opened(untied)
    assert str(path) in str(caught.value)
    header = json.loads(path.read_bytes()[8 : 8 + struct.unpack("<Q", path.read_bytes()[:8])[0]])
    header.pop("__metadata__", None)
    last = max(header, key=lambda name: header[name]["data_offsets"][1])
    assert last in str(caught.value)


@pytest.mark.parametrize("length", [0, 2**60, 2**64 - 1])
def test_o34f_a_wrong_header_length_is_refused_at_once(untied: Path, length: int) -> None:
    path = untied / FILE
    path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])
    begin = time.perf_counter()
    with pytest.raises(CheckpointError) as caught:
        opened(untied)
    assert str(path) in str(caught.value)
    assert time.perf_counter() - begin < 5


def test_o34f_overlapping_tensors_are_refused_by_name(untied: Path) -> None:
    path = untied / FILE
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    for name in ("gate", "up"):  # of one shape: both now claim the bytes of the first
        span = header["model.layers.0.mlp.gate_proj.weight"]["data_offsets"]
        header[f"model.layers.0.mlp.{name}_proj.weight"]["data_offsets"] = span
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])
    with pytest.raises(CheckpointError, match=r"model\.layers\.0\.mlp\.(gate|up)_proj") as caught:
        opened(untied)
    assert str(path) in str(caught.value)


def test_o34g_a_stray_file_with_the_same_names_is_not_used(sharded: Path) -> None:
    expected = scores(sharded)
    shard = sorted(sharded.glob("*.safetensors"))[0]
    zeros = {name: torch.zeros_like(tensor) for name, tensor in load_file(shard).items()}
    for stray in ("another.safetensors", "model-00009-of-00009.safetensors"):
        save_file(zeros, sharded / stray)
    assert scores(sharded) == expected


def test_o34h_an_unknown_tensor_is_refused_by_name(untied: Path) -> None:
    stranger = "model.layers.0.self_attn.q_norm.weight"
    edit(untied, lambda tensors: tensors.update({stranger: torch.ones(8)}))
    with pytest.raises(CheckpointError, match=stranger):
        opened(untied)


def test_o34h_a_tensor_of_a_wrong_shape_is_refused_by_name(untied: Path) -> None:
    edit(untied, lambda tensors: tensors.update({MIDDLE: torch.ones(48, 31)}))
    with pytest.raises(CheckpointError, match=MIDDLE):
        opened(untied)


def test_o34i_float16_tensors_compute_in_the_dtype_that_the_configuration_states(
    untied: Path,
) -> None:
    exact = scores(untied)
    edit(untied, lambda tensors: tensors.update({n: t.half() for n, t in tensors.items()}))
    path = untied / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dtype": "bfloat16"}))
    with opened(untied, "auto") as llm:
        assert llm.model.dtype == "bfloat16"
    auto = scores(untied, "auto")
    assert auto == scores(untied, "bfloat16") != scores(untied, "float32")
    assert auto == pytest.approx(exact, abs=0.3)


def test_a_refused_checkpoint_can_be_mended_and_loaded(untied: Path) -> None:
    expected = scores(untied)
    whole = (untied / FILE).read_bytes()
    (untied / FILE).write_bytes(whole[:-1])
    with pytest.raises(CheckpointError):
        opened(untied)
    (untied / FILE).write_bytes(whole)
    assert scores(untied) == expected
