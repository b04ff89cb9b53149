"""Every number of a ``config.json``, replaced by what is no sensible number: a clear error or a
working model, in little time and memory."""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pegboard import LLM, SamplingParams
from pegboard.errors import PegboardError
from pegboard.testing.checkpoints import ByteVocabulary

pytestmark = pytest.mark.usefixtures("one_thread")

SECONDS, MEBIBYTES = 5.0, 500
"""Of processors, since a busy machine makes everything take long."""
HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, SIZE = 32, 48, 2, 4, 2, 8
VOCABULARY = ByteVocabulary()
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "head_dim": SIZE,
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": INNER,
    "max_position_embeddings": 128,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "pad_token_id": 0,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "vocab_size": VOCABULARY.size,
}
OTHERS = ("layer_types", "quantization_config", "rope_parameters", "rope_scaling", "sliding_window")
"""Keys whose values are no plain numbers, or that are usually null."""
VALUES = [0, 10**9, 1.5, "x", None, -1, 20_000, 10**30, [], {}, True, [{}], float("inf")]
QUICK = 5
"""How many of them the quick tests try."""


def shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY.size, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCABULARY.size, HIDDEN),
    }
    for layer in range(LAYERS):
        parts = {
            "input_layernorm": (HIDDEN,),
            "post_attention_layernorm": (HIDDEN,),
            "self_attn.q_proj": (HEADS * SIZE, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * SIZE, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * SIZE, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * SIZE),
            "mlp.gate_proj": (INNER, HIDDEN),
            "mlp.up_proj": (INNER, HIDDEN),
            "mlp.down_proj": (HIDDEN, INNER),
        }
        found |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in parts.items()}
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from safetensors.numpy import save_file

    path = tmp_path_factory.mktemp("llama")
    draws = np.random.default_rng(0)
    tensors = {
        name: draws.standard_normal(shape).astype(np.float32) for name, shape in shapes().items()
    }
    save_file(tensors, path / "model.safetensors")
    (path / "tokenizer.json").write_text(VOCABULARY.json())
    return path


def outcome(folder: Path, changes: dict[str, Any], **options: Any) -> str:
    """Two tokens' worth of work: ``"works"``, or the message of a deliberate error."""
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    try:
        with LLM(str(folder), dtype="float32", max_num_seqs=4, **options) as llm:
            params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
            (output,) = llm.generate([5, 6, 7], params, use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 2
    except PegboardError as error:
        return str(error)
    return "works"


def memory() -> float:
    """Most memory that this process ever had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


KEYS = [key for key in CONFIG if key != "architectures"] + [*OTHERS]


@pytest.mark.parametrize("key", KEYS)
def test_a_value_is_refused_by_name_or_works(folder: Path, key: str) -> None:
    check_values(folder, key, VALUES[:QUICK])


@pytest.mark.accept
@pytest.mark.parametrize("key", KEYS)
def test_any_value_is_refused_by_name_or_works(folder: Path, key: str) -> None:
    check_values(folder, key, VALUES[QUICK:])


def check_values(folder: Path, key: str, values: list[Any]) -> None:
    assert outcome(folder, {}) == "works"
    before = memory()
    for value in values:
        begin = time.process_time()
        said = outcome(folder, {key: value}, num_gpu_blocks_override=32)
        assert time.process_time() - begin < SECONDS, f"{key}={value!r}: {said}"
        assert len(said) < 1000, f"{key}={value!r}: {said}"
    assert memory() - before < MEBIBYTES


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000 is not allowed"),
        ({"num_hidden_layers": 3}, "num_hidden_layers=3 is not allowed: the tensors are of 2"),
        ({"hidden_size": 10**9}, "hidden_size=1000000000"),
        ({"vocab_size": 10**9}, "vocab_size=1000000000"),
        ({"head_dim": 10**9}, "heads of size 1000000000"),
        ({"num_attention_heads": 10**9}, "q_proj.weight"),
        ({"intermediate_size": 10**9}, "gate_proj.weight"),
        ({"max_position_embeddings": 10**9}, "max_model_len=1000000000"),
        ({"max_position_embeddings": 0}, "max_position_embeddings=0"),
        ({"rms_norm_eps": -1}, "rms_norm_eps=-1"),
        ({"layer_types": [{}]}, "layer_types=[{}]"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"num_gpu_blocks_override": 32}])
def test_an_absurd_size_is_told_by_name(
    folder: Path, changes: dict[str, Any], said: str, options: dict[str, Any]
) -> None:
    assert said in outcome(folder, changes, **options)
