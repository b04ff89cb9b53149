"""Random Qwen models as GGUF files against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from pegboard import LLM, RequestOutput, SamplingParams
from pegboard.errors import RequestError, UnsupportedError
from pegboard_quant_gguf.testing import quantise_rows, tensor_data, write_gguf
from pegboard_testkit.near_tie import assert_same
from pegboard_testkit.reference import compare_distributions

pytestmark = pytest.mark.usefixtures("one_thread")

TOLERANCE = 1e-4
BASE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.25,
}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2", {}),
    "qwen2, tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 12}),
    "qwen3, tied, one key head": (
        "Qwen3",
        {"head_dim": 8, "num_key_value_heads": 1, "tie_word_embeddings": True},
    ),
}
MIXTURES: dict[str, dict[str, Any]] = {
    "qwen3moe": {"head_dim": 8},
    "qwen3moe, tied, one of four, a dense layer": {
        "head_dim": 12,
        "num_experts": 4,
        "num_experts_per_tok": 1,
        "mlp_only_layers": [1],
        "tie_word_embeddings": True,
    },
}
EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attn_output",
    "self_attn.": "attn_",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.gate.": "ffn_gate_inp.",
    "mlp.": "ffn_",
    "_proj": "",
}


def random_model(generation: str, settings: dict[str, Any]) -> Any:
    torch.manual_seed(5)
    config = getattr(transformers, f"{generation}Config")(**{**BASE, **settings})
    model = getattr(transformers, f"{generation}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    return model


def gguf_tensors(model: Any) -> dict[str, torch.Tensor]:
    """Names as GGUF has them; the order of rows is the same."""
    found = {}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        if name.endswith("experts.gate_up_proj"):
            before = name.replace("model.layers", "blk").replace("mlp.experts.gate_up_proj", "")
            gate, up = value.chunk(2, 1)
            found |= {f"{before}ffn_gate_exps.weight": gate, f"{before}ffn_up_exps.weight": up}
            continue
        found[gguf_name(name)] = value
    return found


def gguf_name(name: str) -> str:
    for old, new in NAMES.items():
        name = name.replace(old, new)
    return name


def gguf_metadata(arch: str, config: Any) -> dict[str, Any]:
    head_size = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    keys = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": head_size,
        "attention.value_length": head_size,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_parameters["rope_theta"],
    }
    if arch == "qwen3moe":
        keys |= {
            "expert_count": config.num_experts,
            "expert_used_count": config.num_experts_per_tok,
            "expert_feed_forward_length": config.moe_intermediate_size,
        }
    return {
        "general.architecture": arch,
        "general.file_type": 0,
        **{f"{arch}.{key}": value for key, value in keys.items()},
    }


def write_model(generation: str, settings: dict[str, Any], path: Path, **metadata: Any) -> Any:
    """Write one model as converters do; returns transformers' model."""
    model = random_model(generation, settings)
    arch = generation.lower()
    tensors = [tensor_data(name, value) for name, value in gguf_tensors(model).items()]
    write_gguf(path, gguf_metadata(arch, model.config) | metadata, tensors)
    return model


def answers(path: Path) -> list[RequestOutput]:
    """Every prompt with the whole distribution of each position, and 12 greedy tokens."""
    draws = np.random.default_rng(8)
    prompts = [draws.integers(3, 96, size=length).tolist() for length in (23, 1, 60)]
    params = SamplingParams(
        temperature=0.0,
        max_tokens=12,
        ignore_eos=True,
        logprobs=-1,
        prompt_logprobs=-1,
        detokenize=False,
    )
    options: dict[str, Any] = {"dtype": "float32", "num_gpu_blocks_override": 100}
    with LLM(str(path), max_num_seqs=4, **options) as llm:
        return llm.generate(prompts, params, use_tqdm=False)


def check(reference: Any, outputs: list[RequestOutput]) -> None:
    assert_same(compare_distributions(reference, outputs, TOLERANCE), gap=TOLERANCE)


@pytest.mark.parametrize(("generation", "settings"), SHAPES.values(), ids=SHAPES)
def test_a_gguf_file_gives_the_same_model(
    generation: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    reference = write_model(generation, settings, tmp_path / "model.gguf")
    check(reference, answers(tmp_path / "model.gguf"))


@pytest.mark.parametrize(("generation", "head_dim"), [("Qwen2", None), ("Qwen3", 32)])
def test_quantised_products_keep_their_plain_biases_and_norms(
    generation: str, head_dim: int | None, tmp_path: Path
) -> None:
    settings = {"intermediate_size": 64} | ({"head_dim": head_dim} if head_dim else {})
    model = random_model(generation, settings)
    kinds = {"attn_q": "Q8_0", "attn_v": "Q4_0", "ffn_gate": "Q8_0", "ffn_down": "Q8_0"}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            kind = _kind(gguf_name(name), kinds)
            if kind != "F32":
                stored = quantise_rows(parameter, kind).numpy()
                exact = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[kind])
                parameter.copy_(torch.from_numpy(exact))
    tensors = [
        tensor_data(name, value, _kind(name, kinds)) for name, value in gguf_tensors(model).items()
    ]
    write_gguf(tmp_path / "q.gguf", gguf_metadata(generation.lower(), model.config), tensors)
    assert sum(tensor.type_id != tensors[0].type_id for tensor in tensors) == 8
    check(model, answers(tmp_path / "q.gguf"))


def _kind(name: str, kinds: dict[str, str]) -> str:
    part, _, suffix = name.removeprefix("blk.").partition(".")[2].partition(".")
    return kinds.get(part, "F32") if suffix == "weight" else "F32"


@pytest.mark.parametrize("settings", MIXTURES.values(), ids=MIXTURES)
def test_a_mixture_of_experts_comes_out_of_a_gguf_file(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    reference = write_model("Qwen3Moe", {**EXPERTS, **settings}, tmp_path / "model.gguf")
    check(reference, answers(tmp_path / "model.gguf"))


def test_weights_that_are_not_renormalised_are_told_apart(tmp_path: Path) -> None:
    settings = {**EXPERTS, "head_dim": 8, "norm_topk_prob": False}
    path = tmp_path / "model.gguf"
    key = "qwen3moe.expert_weights_norm"
    reference = write_model("Qwen3Moe", settings, path, **{key: False})
    check(reference, answers(path))
    write_model("Qwen3Moe", settings, path, **{key: True})
    with pytest.raises(AssertionError):
        check(reference, answers(path))


def test_quantised_experts_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    model = random_model("Qwen3Moe", {**EXPERTS, "head_dim": 8, "moe_intermediate_size": 32})
    tensors = [
        tensor_data(name, value, "Q8_0" if "ffn_gate_exps" in name else "F32")
        for name, value in gguf_tensors(model).items()
    ]
    write_gguf(path, gguf_metadata("qwen3moe", model.config), tensors)
    with pytest.raises(UnsupportedError, match=r"layers\.0\.mlp\.experts.*'experts'.*Q8_0"):
        LLM(str(path), dtype="float32")


def test_o35h_without_a_chat_template_completions_work_and_a_chat_is_refused_with_a_hint(
    tmp_path: Path,
) -> None:
    letters = [chr(code) for code in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x144))]
    tokenizer = {
        "model": "gpt2",
        "pre": "qwen2",
        "tokens": [*letters, "<|end|>", "<|pad|>"],
        "token_type": [1] * 256 + [3, 3],
        "merges": [],
        "eos_token_id": 256,
    }
    keys = {f"tokenizer.ggml.{name}": value for name, value in tokenizer.items()}
    path, talk = tmp_path / "model.gguf", [{"role": "user", "content": "hi"}]
    write_model("Qwen2", {"vocab_size": 258}, path, **keys)
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    with LLM(str(path), dtype="float32", num_gpu_blocks_override=100) as llm:
        with pytest.raises(RequestError, match="no chat template: give one as chat_template"):
            llm.chat(talk, params, use_tqdm=False)
        (plain,) = llm.generate("hi", params, use_tqdm=False)
        assert len(plain.outputs[0].token_ids) == 3
        template = "{{ messages[0].content }}"
        (given,) = llm.chat(talk, params, use_tqdm=False, chat_template=template)
        assert given.outputs[0].token_ids == plain.outputs[0].token_ids
