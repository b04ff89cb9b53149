"""Logits of the Llama family against transformers, from the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from pegboard.api.model import ConfigInput
from pegboard_model_llama.config import read_config
from pegboard_model_llama.weights import weight_map

BASE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 67,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 10000.0,
}
SHAPES: dict[str, dict[str, Any]] = {
    "grouped queries": {},
    "a head per query": {"num_key_value_heads": 4},
    "one key head": {"num_key_value_heads": 1},
    "three heads to one": {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 72},
    "tied head": {"tie_word_embeddings": True},
    "attention bias": {"attention_bias": True},
    "mlp bias": {"mlp_bias": True},
    "wide heads": {"head_dim": 24},
    "narrow heads": {"head_dim": 4},
    "one layer, odd sizes": {
        "num_hidden_layers": 1,
        "intermediate_size": 37,
        "vocab_size": 51,
    },
    "llama3 rope": {"rope_parameters": LLAMA3, "head_dim": 16},
    "linear rope": {
        "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    },
    "large theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    "mistral": {"sliding_window": None},
    "mistral with a window that is not reached": {"sliding_window": 64},
}


def reference(shape: dict[str, Any]) -> Any:
    """A random model of transformers, biases and norms included."""
    mistral = "sliding_window" in shape
    config_class = transformers.MistralConfig if mistral else transformers.LlamaConfig
    model_class = transformers.MistralForCausalLM if mistral else transformers.LlamaForCausalLM
    torch.manual_seed(7)
    model = model_class(config_class(**{**BASE, **shape})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    return model


def answer(model: Any, row: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([row])).logits[0]
    return logits


def tokens(count: int, vocab: int, seed: int) -> list[int]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab, (count,), generator=draw).tolist()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_logits_equal_the_reference(
    shape: dict[str, Any], bench: Any, read_hf: Any, kernel_names: list[str]
) -> None:
    model = reference(shape)
    config = read_hf(model.config.to_dict(), type(model).__name__)
    rows = [tokens(count, config.vocab_size, count) for count in (29, 1, 13)]
    state = dict(model.state_dict())
    for kernel in kernel_names:
        ours = bench(config, "hf", state, kernel)
        skipped = {"lm_head.weight"} if config.tied else set()
        assert ours.used == state.keys() - skipped
        for row, found in zip(rows, ours.logits(rows), strict=True):
            torch.testing.assert_close(found, answer(model, row), rtol=0, atol=1e-4)


def test_chunks_and_single_tokens_give_the_logits_of_the_whole(
    bench: Any, read_hf: Any, kernel_names: list[str]
) -> None:
    model = reference(SHAPES["llama3 rope"])
    config = read_hf(model.config.to_dict())
    rows = [tokens(23, config.vocab_size, 1), tokens(12, config.vocab_size, 2)]
    for kernel in kernel_names:
        ours = bench(config, "hf", dict(model.state_dict()), kernel)
        found = ours.logits(rows, chunks=(5, 1, 1, 4, 1, 11))
        assert ours.step_count == 6
        for row, logits in zip(rows, found, strict=True):
            torch.testing.assert_close(logits, answer(model, row), rtol=0, atol=1e-4)


def gguf_tensors(state: dict[str, torch.Tensor], heads: dict[str, int]) -> dict[str, torch.Tensor]:
    """Rename as GGUF has it and bring rotating pairs of q and k side by side."""
    renames = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "model.layers.": "blk.",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.o_proj": "attn_output",
        "self_attn.": "attn_",
        "mlp.": "ffn_",
        "_proj": "",
    }
    found = {}
    for name, tensor in state.items():
        count = next((n for part, n in heads.items() if f".{part}." in name), None)
        if count is not None:
            tensor = tensor.unflatten(0, (count, 2, -1)).transpose(1, 2).flatten(0, 2)  # noqa: PLW2901
        for old, new in renames.items():
            name = name.replace(old, new)  # noqa: PLW2901
        found[name] = tensor
    return found


def gguf_metadata(config: Any) -> dict[str, Any]:
    return {
        "general.architecture": "llama",
        "general.file_type": 0,
        "llama.block_count": config.num_hidden_layers,
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.key_length": config.head_dim,
        "llama.attention.value_length": config.head_dim,
        "llama.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "llama.rope.dimension_count": config.head_dim,
        "llama.rope.freq_base": config.rope_parameters["rope_theta"],
        "llama.vocab_size": config.vocab_size,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def from_gguf(model: Any, more: dict[str, torch.Tensor], bench: Any, **options: Any) -> Any:
    heads = {
        "q_proj": model.config.num_attention_heads,
        "k_proj": model.config.num_key_value_heads,
    }
    stored = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        del stored["lm_head.weight"]
    tensors = gguf_tensors(stored, heads) | more
    source = ConfigInput(gguf_metadata(model.config), "gguf", "llama", frozenset(tensors))
    ours = bench(read_config(source), "gguf", tensors, **options)
    assert ours.used == tensors.keys()
    return ours


@pytest.mark.parametrize("name", ["grouped queries", "tied head", "attention bias", "mlp bias"])
def test_gguf_names_and_row_order_give_the_same_model(name: str, bench: Any) -> None:
    model = reference(SHAPES[name])
    row = tokens(21, BASE["vocab_size"], 5)
    (found,) = from_gguf(model, {}, bench).logits([row])
    torch.testing.assert_close(found, answer(model, row), rtol=0, atol=1e-4)


def test_o35a_rope_factors_of_a_gguf_file_are_applied(bench: Any) -> None:
    model = reference(SHAPES["llama3 rope"])
    plain = reference({**SHAPES["llama3 rope"], "rope_parameters": {"rope_theta": 10000.0}})
    stretched = model.model.rotary_emb.inv_freq
    factors = plain.model.rotary_emb.inv_freq / stretched
    assert factors.max() > 7
    row = tokens(100, BASE["vocab_size"], 6)
    (found,) = from_gguf(model, {"rope_freqs.weight": factors}, bench).logits([row])
    torch.testing.assert_close(found, answer(model, row), rtol=0, atol=1e-4)
    (without,) = from_gguf(model, {}, bench).logits([row])
    assert (without - found)[50:].abs().max() > 1e-2


def test_positions_far_out_agree_with_the_reference(bench: Any, read_hf: Any) -> None:
    model = reference({**SHAPES["llama3 rope"], "max_position_embeddings": 131072})
    config = read_hf(model.config.to_dict())
    row, far = tokens(17, config.vocab_size, 8), 131000
    ours = bench(config, "hf", dict(model.state_dict()))
    with torch.inference_mode():
        positions = torch.arange(far, far + len(row))[None]
        wanted = model(torch.tensor([row]), position_ids=positions).logits[0]
    (found,) = ours.logits([row], first_position=far)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


def test_the_position_table_is_as_long_as_the_run_needs(bench: Any, read_hf: Any) -> None:
    model = reference({})
    config = read_hf(model.config.to_dict())
    ours = bench(config, "hf", dict(model.state_dict()), max_positions=24)
    assert ours.model.rope.runtime["table"].shape == (24, 8)


def test_a_weight_update_changes_the_answer_in_place(bench: Any, read_hf: Any) -> None:
    first, second = reference({"attention_bias": True}), reference({"attention_bias": True})
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.mul_(1.25)
    config = read_hf(first.config.to_dict())
    ours = bench(config, "hf", dict(first.state_dict()))
    storage = ours.model.layers[0].attention.qkv.runtime["weight"].data_ptr()
    ours.refill(dict(second.state_dict()))
    assert ours.model.layers[0].attention.qkv.runtime["weight"].data_ptr() == storage
    row = tokens(9, config.vocab_size, 3)
    (found,) = ours.logits([row])
    torch.testing.assert_close(found, answer(second, row), rtol=0, atol=1e-4)


def test_a_tied_checkpoint_skips_a_head_of_its_own_with_a_reason(read_hf: Any) -> None:
    config = read_hf({**BASE, "tie_word_embeddings": True})
    names = weight_map(config, "hf")
    assert any(skip.pattern == "lm_head.weight" and "tied" in skip.reason for skip in names.skips)
    assert all(rule.target != "head" for rule in names.rules)
