"""Random Llama, Mistral and Ministral checkpoints, as transformers saves them, against transformers
itself.

The whole way is tested: files, configuration, names, loading, prompt scores and greedy decoding.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
import transformers

from pegboard import LLM, RequestOutput, SamplingParams
from pegboard.errors import ConfigError, PegboardError, UnsupportedError
from pegboard_testkit.near_tie import Comparison, assert_same
from pegboard_testkit.reference import compare_distributions, distributions

pytestmark = pytest.mark.usefixtures("one_thread")

CONTEXT = 128
TOLERANCE = 1e-4
BASE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.25,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}

MIXED = ["sliding_attention", "full_attention", "sliding_attention"]

Config = dict[str, Any]


def old_keys(config: Config) -> Config:
    """The same settings as files of 2023 and 2024 have them."""
    rope = dict(config.pop("rope_parameters"))
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    return config


def oldest_keys(config: Config) -> Config:
    """As `old_keys`, with the first name of the rope type and without keys that came later."""
    config = old_keys(config)
    if config["rope_scaling"]:
        config["rope_scaling"]["type"] = config["rope_scaling"].pop("rope_type")
    for key in ("attention_bias", "mlp_bias", "head_dim"):
        config.pop(key, None)
    return config


def by_layer_type(config: Config) -> Config:
    """The rope settings once per type of layer."""
    config["rope_parameters"] = {"full_attention": config["rope_parameters"]}
    return config


@attrs.frozen
class Shape:
    """One kind of checkpoint: what differs from `BASE`, and how it is written."""

    settings: dict[str, Any] = attrs.field(factory=dict)
    stored: torch.dtype = torch.float32
    rewrite: Callable[[Config], Config] | None = None


SHAPES: dict[str, Shape] = {
    "grouped queries": Shape(),
    "one head per query": Shape({"num_key_value_heads": 4}),
    "one key head for all": Shape({"num_key_value_heads": 1}),
    "nine heads on three, tied": Shape(
        {
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "hidden_size": 72,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
        }
    ),
    "attention bias": Shape({"attention_bias": True}),
    "bias everywhere, tied": Shape(
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
    ),
    "heads wider than their share": Shape({"head_dim": 24}),
    "heads narrower than their share": Shape({"head_dim": 4, "num_key_value_heads": 1}),
    "llama3 rope": Shape({"rope_parameters": LLAMA3, "head_dim": 16}),
    "llama3 rope, old keys": Shape({"rope_parameters": LLAMA3}, rewrite=old_keys),
    "llama3 rope, oldest keys": Shape({"rope_parameters": LLAMA3}, rewrite=oldest_keys),
    "plain rope, oldest keys": Shape(rewrite=oldest_keys),
    "rope by layer type": Shape({"rope_parameters": LLAMA3}, rewrite=by_layer_type),
    "stored as float16": Shape(stored=torch.float16),
    "stored as bfloat16, tied": Shape({"tie_word_embeddings": True}, stored=torch.bfloat16),
    "mistral without a window": Shape({"sliding_window": None, "head_dim": 16}),
    "mistral with a window as long as the context": Shape({"sliding_window": CONTEXT}),
    "mistral with a short window": Shape({"sliding_window": 7, "head_dim": 16}),
    "ministral, a window in every other layer": Shape(
        {"sliding_window": 5, "layer_types": MIXED, "head_dim": 8}
    ),
    "one layer of odd sizes": Shape(
        {"num_hidden_layers": 1, "intermediate_size": 37, "vocab_size": 71}
    ),
}


def random_model(shape: Shape) -> Any:
    """A random model in its stored dtype, norms and biases included."""
    windowed = "Ministral" if "layer_types" in shape.settings else "Mistral"
    family = windowed if "sliding_window" in shape.settings else "Llama"
    config = getattr(transformers, f"{family}Config")(**{**BASE, **shape.settings})
    torch.manual_seed(5)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    return model.to(shape.stored)


def save(model: Any, folder: Path, shards: int) -> None:
    """Save in exactly so many files."""
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    limit = 2 * size if shards == 1 else size // (shards + 1)
    while limit <= 2 * size:
        for file in folder.glob("*.safetensors*"):
            file.unlink()
        model.save_pretrained(folder, max_shard_size=limit)
        if len(list(folder.glob("*.safetensors"))) == shards:
            return
        limit += max(1, size // 50)
    raise AssertionError(f"no limit gives {shards} files")


def write(shape: Shape, folder: Path, shards: int = 1) -> Any:
    """Write one checkpoint; returns transformers' own reading of the same files, in float32."""
    save(random_model(shape), folder, shards)
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if shape.rewrite is not None:
        path = folder / "config.json"
        path.write_text(json.dumps(shape.rewrite(json.loads(path.read_text()))))
    return reference.eval()


def prompts(vocab: int) -> list[list[int]]:
    draws = np.random.default_rng(8)
    return [draws.integers(3, vocab, size=length).tolist() for length in (40, 1, 17)]


def opened(folder: Path, **options: Any) -> LLM:
    common = {"dtype": "float32", "num_gpu_blocks_override": 64, "max_num_seqs": 4}
    return LLM(str(folder), **{**common, **options})


def answers(folder: Path, vocab: int, **options: Any) -> list[RequestOutput]:
    """Every prompt with the whole distribution of each position, and 12 greedy tokens."""
    params = SamplingParams(
        temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=-1, prompt_logprobs=-1
    )
    with opened(folder, **options) as llm:
        return llm.generate(prompts(vocab), params, use_tqdm=False)


def check(reference: Any, outputs: list[RequestOutput]) -> Comparison:
    found = compare_distributions(reference, outputs, TOLERANCE)
    assert_same(found, gap=TOLERANCE)
    return found


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_scores_and_greedy_tokens_are_the_references(shape: Shape, tmp_path: Path) -> None:
    reference = write(shape, tmp_path)
    check(reference, answers(tmp_path, reference.config.vocab_size))


def test_shapes_that_should_differ_do(tmp_path: Path) -> None:
    """The comparison notices a wrong rope: it is what the shapes above rely on."""
    reference = write(SHAPES["llama3 rope, old keys"], tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_scaling": None}))
    with pytest.raises(AssertionError):
        check(reference, answers(tmp_path, reference.config.vocab_size))


@pytest.mark.parametrize("shards", [2, 5])
def test_shards_change_nothing(shards: int, tmp_path: Path) -> None:
    shape = SHAPES["grouped queries"]
    reference = write(shape, tmp_path, shards)
    check(reference, answers(tmp_path, reference.config.vocab_size))


@pytest.mark.accept
@pytest.mark.parametrize("shards", [2, 5])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_shape_from_shards(shape: Shape, shards: int, tmp_path: Path) -> None:
    reference = write(shape, tmp_path, shards)
    check(reference, answers(tmp_path, reference.config.vocab_size))


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Config, np.ndarray]:
    """One llama3 checkpoint: its folder, its configuration, and our distributions."""
    folder = tmp_path_factory.mktemp("scaled")
    write(Shape({"rope_parameters": LLAMA3}), folder)
    config = json.loads((folder / "config.json").read_text())
    return folder, config, np.concatenate([distributions(o) for o in answers(folder, 96)])


SCALING = {key: value for key, value in LLAMA3.items() if key != "rope_theta"}
SPELLINGS: dict[str, tuple[tuple[str, ...], Config]] = {
    "old keys": (("rope_parameters",), {"rope_theta": 500000, "rope_scaling": SCALING}),
    "oldest keys": (
        ("rope_parameters",),
        {
            "rope_theta": 500000,
            "rope_scaling": {k: v for k, v in SCALING.items() if k != "rope_type"}
            | {"type": "llama3"},
        },
    ),
    "both keys": ((), {"rope_scaling": LLAMA3}),
    "theta outside": ((), {"rope_theta": 500000.0, "rope_parameters": SCALING}),
    "by layer type": ((), {"rope_parameters": {"full_attention": LLAMA3}}),
    "old dtype key": (("dtype",), {"torch_dtype": "float32"}),
    "head_dim left out": (("head_dim",), {}),
    "a window that is not used": ((), {"sliding_window": 4, "use_sliding_window": False}),
    "no window": ((), {"sliding_window": None}),
    "several end ids": ((), {"eos_token_id": [2, 5]}),
}


def respell(folder: Path, target: Path, config: Config) -> Path:
    """The same weights under another configuration."""
    (target / "config.json").write_text(json.dumps(config))
    (target / "model.safetensors").symlink_to(folder / "model.safetensors")
    return target


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_o33_equivalent_configurations_give_equal_logits(
    spelling: tuple[tuple[str, ...], Config],
    scaled: tuple[Path, Config, np.ndarray],
    tmp_path: Path,
) -> None:
    folder, config, expected = scaled
    without, changes = spelling
    kept = {key: value for key, value in config.items() if key not in without}
    outputs = answers(respell(folder, tmp_path, kept | changes), 96)
    found = np.concatenate([distributions(output) for output in outputs])
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"rope_parameters": LLAMA3 | {"rope_type": "spiral"}}, ConfigError, "spiral"),
        ({"rope_parameters": LLAMA3 | {"rope_type": "yarn"}}, UnsupportedError, "yarn"),
        ({"rope_parameters": None, "rope_scaling": {"type": "x1"}}, ConfigError, "x1"),
        ({"sliding_window": 8, "max_window_layers": 1}, UnsupportedError, "max_window_layers"),
        ({"dtype": "int3"}, ConfigError, "int3"),
        ({"architectures": ["NoSuchForCausalLM"]}, PegboardError, "NoSuchForCausalLM"),
    ],
)
def test_o33_what_is_not_known_is_refused_and_never_guessed(
    changes: Config,
    error: type[Exception],
    said: str,
    scaled: tuple[Path, Config, np.ndarray],
    tmp_path: Path,
) -> None:
    folder, config, _ = scaled
    with pytest.raises(error, match=said):
        opened(respell(folder, tmp_path, config | changes))


@pytest.mark.parametrize(
    "change", [{"layer_types": MIXED[::-1][1:] + MIXED[:1]}, {"sliding_window": 6}]
)
def test_no_window_of_some_layers_is_ignored(change: Config, tmp_path: Path) -> None:
    """vllm#15705, vllm#17306: layers with a window were run without it, or all with it."""
    reference = write(SHAPES["ministral, a window in every other layer"], tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(AssertionError):
        check(reference, answers(tmp_path, reference.config.vocab_size))


def test_a_context_within_the_sliding_window_is_served(
    scaled: tuple[Path, Config, np.ndarray], tmp_path: Path
) -> None:
    folder, config, expected = scaled
    respell(folder, tmp_path, config | {"sliding_window": 64})
    outputs = answers(tmp_path, 96, max_model_len=64)
    assert np.array_equal(np.concatenate([distributions(o) for o in outputs]), expected)
