"""Random Gemma checkpoints of all three generations against transformers: from safetensors as
transformers saves them, and from GGUF files.

The whole way is tested: files, configuration, names, loading, prompt scores and greedy decoding,
with prompts that reach far beyond the sliding windows.
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
from pegboard_quant_gguf.testing import tensor_data, write_gguf
from pegboard_testkit.near_tie import assert_same
from pegboard_testkit.reference import compare_distributions, distributions

pytestmark = pytest.mark.usefixtures("one_thread")

TOLERANCE = 1e-4
CONTEXT = 128
WINDOW = 9
FULL, SLIDING = "full_attention", "sliding_attention"
BASE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.25,
    "pad_token_id": 0,
    "attn_implementation": "eager",  # others leave out the soft caps in some releases
}
WINDOWED = {**BASE, "sliding_window": WINDOW, "query_pre_attn_scalar": 16}
LINEAR = {
    FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
}

Config = dict[str, Any]


def early_keys(config: Config) -> Config:
    """Gemma 3 settings as its first files had them: two bases, a pattern, no list of layers."""
    ropes = config.pop("rope_parameters")
    scaling = {key: value for key, value in ropes[FULL].items() if key != "rope_theta"}
    config["rope_theta"] = ropes[FULL]["rope_theta"]
    config["rope_local_base_freq"] = ropes[SLIDING]["rope_theta"]
    config["rope_scaling"] = None if scaling["rope_type"] == "default" else scaling
    config["sliding_window_pattern"] = config.pop("layer_types").index(FULL) + 1
    config["torch_dtype"] = config.pop("dtype")
    return config


def gemma2_early_keys(config: Config) -> Config:
    """Gemma 2 settings as its first files had them."""
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["torch_dtype"] = config.pop("dtype")
    config["hidden_act"] = config["hidden_activation"]
    config["cache_implementation"] = "hybrid"
    del config["layer_types"]
    return config


def legacy_activation(config: Config) -> Config:
    """The first Gemma files say ``gelu`` and mean its approximation by tanh; releases of the
    reference differ in whether they know."""
    config.pop("hidden_activation", None)
    config["hidden_act"] = "gelu"
    return config


@attrs.frozen
class Shape:
    """One kind of checkpoint."""

    generation: str
    settings: Config = attrs.field(factory=dict)
    stored: torch.dtype = torch.float32
    rewrite: Callable[[Config], Config] | None = None


SHAPES: dict[str, Shape] = {
    "gemma": Shape("Gemma"),
    "gemma, legacy name of the activation": Shape("Gemma", rewrite=legacy_activation),
    "gemma2": Shape("Gemma2"),
    "gemma2, early keys": Shape("Gemma2", rewrite=gemma2_early_keys),
    "gemma2, tight caps": Shape(
        "Gemma2", {"attn_logit_softcapping": 0.7, "final_logit_softcapping": 2.5}
    ),
    "gemma2, no caps": Shape(
        "Gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    ),
    "gemma2, layers listed, one key head, another scale": Shape(
        "Gemma2",
        {
            "layer_types": [FULL, FULL, SLIDING, SLIDING],
            "num_key_value_heads": 1,
            "query_pre_attn_scalar": 24,
            "sliding_window": 16,
        },
    ),
    "gemma2, untied, with biases": Shape(
        "Gemma2", {"tie_word_embeddings": False, "attention_bias": True}
    ),
    "gemma3": Shape("Gemma3", {"sliding_window_pattern": 3}),
    "gemma3, early keys": Shape("Gemma3", {"sliding_window_pattern": 2}, rewrite=early_keys),
    "gemma3, stretched, early keys": Shape(
        "Gemma3", {"sliding_window_pattern": 3, "rope_parameters": LINEAR}, rewrite=early_keys
    ),
    "gemma3, stretched": Shape("Gemma3", {"rope_parameters": LINEAR, "sliding_window_pattern": 2}),
    "gemma3, windows only, other base": Shape(
        "Gemma3",
        {
            "rope_parameters": {
                FULL: {"rope_type": "default", "rope_theta": 500_000.0},
                SLIDING: {"rope_type": "default", "rope_theta": 20_000.0},
            }
        },
    ),
    "gemma3, bounded logits, wide heads, a window of one": Shape(
        "Gemma3",
        {
            "layer_types": [SLIDING, FULL] * 2,
            "final_logit_softcapping": 3.0,
            "head_dim": 24,
            "query_pre_attn_scalar": 40,
            "sliding_window": 1,
        },
    ),
    "gemma3, stored as bfloat16": Shape(
        "Gemma3", {"sliding_window_pattern": 2}, stored=torch.bfloat16
    ),
}
GGUF_SHAPES = ("gemma", "gemma2", "gemma2, tight caps", "gemma3", "gemma3, stretched")


def random_model(shape: Shape) -> Any:
    """A random model in its stored dtype, norms and biases included."""
    name = shape.generation + ("TextConfig" if shape.generation == "Gemma3" else "Config")
    base = BASE if shape.generation == "Gemma" else WINDOWED
    torch.manual_seed(5)
    config = getattr(transformers, name)(**json.loads(json.dumps({**base, **shape.settings})))
    model = getattr(transformers, f"{shape.generation}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.normal_(0.0, 0.2)
    return model.to(shape.stored)


def write(shape: Shape, folder: Path, shards: int = 1) -> Any:
    """Write one checkpoint; returns transformers' own reading of the same weights, in float32."""
    model = random_model(shape)
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    model.save_pretrained(folder, max_shard_size=2 * size if shards == 1 else int(size / 1.5))
    assert len(list(folder.glob("*.safetensors"))) == shards
    if shape.stored != torch.float32:
        model = type(model).from_pretrained(folder, dtype=torch.float32)
    if shape.rewrite is not None:
        path = folder / "config.json"
        path.write_text(json.dumps(shape.rewrite(json.loads(path.read_text()))))
    return model.eval()


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
    "input_layernorm": "attn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.o_proj": "attn_output",
    "self_attn.": "attn_",
    "mlp.": "ffn_",
    "_proj": "",
}


def write_as_gguf(shape: Shape, path: Path) -> Any:
    """Write one model as converters do, norm weights with 1 added; returns the model."""
    model = random_model(shape)
    arch = shape.generation.lower()
    between = "ffn_norm" if arch == "gemma" else "post_attention_norm"
    tensors = []
    for name, value in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        renamed = name.replace("post_attention_layernorm", between)
        for old, new in GGUF_NAMES.items():
            renamed = renamed.replace(old, new)
        tensors.append(tensor_data(renamed, value + 1 if "norm" in name else value))
    write_gguf(path, gguf_metadata(arch, model.config), tensors)
    return model.eval()


def gguf_metadata(arch: str, config: Any) -> Config:
    keys: Config = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    }
    if arch != "gemma":
        keys["attention.sliding_window"] = config.sliding_window
    if arch == "gemma2":
        keys["attn_logit_softcapping"] = config.attn_logit_softcapping
        keys["final_logit_softcapping"] = config.final_logit_softcapping
    if arch == "gemma3":
        keys["attention.sliding_window_pattern"] = config.layer_types.index(FULL) + 1
        rope = config.rope_parameters[FULL]
        keys["rope.freq_base"] = rope["rope_theta"]
        if rope["rope_type"] == "linear":
            keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": rope["factor"]}
    return {
        "general.architecture": arch,
        "general.file_type": 0,
        **{f"{arch}.{key}": value for key, value in keys.items()},
    }


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


def check(reference: Any, outputs: list[RequestOutput]) -> None:
    assert_same(compare_distributions(reference, outputs, TOLERANCE), gap=TOLERANCE)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_scores_and_greedy_tokens_are_the_references(shape: Shape, tmp_path: Path) -> None:
    reference = write(shape, tmp_path)
    check(reference, answers(tmp_path))


@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
def test_two_shards_change_nothing(name: str, tmp_path: Path) -> None:
    reference = write(SHAPES[name], tmp_path, shards=2)
    check(reference, answers(tmp_path, max_num_batched_tokens=24))


@pytest.mark.parametrize("name", GGUF_SHAPES)
def test_a_gguf_file_gives_the_same_model(name: str, tmp_path: Path) -> None:
    reference = write_as_gguf(SHAPES[name], tmp_path / "model.gguf")
    check(reference, answers(tmp_path / "model.gguf"))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gemma2", {"sliding_window": WINDOW + 1}),
        ("gemma2", {"layer_types": [FULL, SLIDING] * 2}),
        ("gemma2", {"attn_logit_softcapping": None}),
        ("gemma2", {"query_pre_attn_scalar": 17}),
        ("gemma3", {"rope_local_base_freq": 9000.0, "rope_parameters": None}),
        ("gemma3", {"final_logit_softcapping": 30.0}),
    ],
)
def test_what_should_change_the_answer_does(name: str, change: Config, tmp_path: Path) -> None:
    """The comparison notices it: this is what the tests above rely on."""
    reference = write(SHAPES[name], tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(AssertionError):
        check(reference, answers(tmp_path))


def test_bfloat16_follows_the_reference_in_bfloat16(tmp_path: Path) -> None:
    """Rounding of the scaled embedding, of norms and of caps: a slip would show as a shift."""
    reference = write(SHAPES["gemma3"], tmp_path).to(torch.bfloat16)
    (output, *_) = answers(tmp_path, dtype="bfloat16")
    ids = torch.tensor([output.prompt_token_ids + output.outputs[0].token_ids])
    with torch.no_grad():
        rows = torch.log_softmax(reference(ids).logits[0].double(), -1).numpy()[:-1]
        exact = torch.log_softmax(reference.float()(ids).logits[0].double(), -1).numpy()[:-1]
    ours = distributions(output)
    assert np.abs(ours - rows).mean() <= 1.5 * np.abs(rows - exact).mean()
    assert np.abs(ours - exact).mean() <= 1.2 * np.abs(rows - exact).mean()
