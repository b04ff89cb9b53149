"""The models: public values of their configurations, and folders that hold them.

For timing the weights are random (``load_format="dummy"``). For checking they cannot be: within
±1e-3 every layer adds less than one bit to what it is added to, so that a wrong layer would not
show. `write_weights` writes a shortened model whose layers all matter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

_COMMON = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}
_QWEN3 = _COMMON | {
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1_000_000.0,
    "sliding_window": None,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
LLAMA_8B = _COMMON | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-5,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500_000.0,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
QWEN3_600M = _QWEN3 | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_window_layers": 28,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
}
QWEN3_30B = _QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
    "tie_word_embeddings": False,
}
TINY = {
    "layers": 2,
    "hidden": 32,
    "heads": 4,
    "kv_heads": 2,
    "head_size": 8,
    "intermediate": 48,
    "vocab_size": 259,
}


@attrs.frozen
class Sizes:
    """What decides the work of a model."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    inner: int
    """Of the MLP, or of one expert."""
    vocabulary: int
    experts: int = 0
    """0 for a dense model."""
    per_token: int = 1

    @property
    def attention_weights(self) -> int:
        """Of one layer."""
        return self.hidden * self.head_size * (2 * self.heads + 2 * self.kv_heads)

    @property
    def mlp_weights(self) -> int:
        """Of one layer's MLP, or of one expert."""
        return 3 * self.hidden * self.inner

    def touched_experts(self, tokens: int) -> float:
        """Experts of a layer that some of `tokens` tokens go to, if all are equally likely."""
        if not self.experts:
            return 1.0
        return self.experts * (1 - (1 - self.per_token / self.experts) ** tokens)

    def weights_read(self, tokens: int) -> float:
        """Weights that a step of `tokens` tokens reads at least; of the embedding some rows, not
        counted."""
        router = self.hidden * self.experts
        layer = self.attention_weights + router + self.touched_experts(tokens) * self.mlp_weights
        return self.layers * layer + self.hidden * self.vocabulary

    def kv_elements(self, tokens: int) -> int:
        """Elements of the cache that hold `tokens` tokens."""
        return 2 * tokens * self.layers * self.kv_heads * self.head_size

    def flops(self, tokens: int, pairs: int, rows: int) -> float:
        """Of a step: `tokens` tokens, `pairs` of a query with a key that it sees, `rows` of
        logits."""
        router = self.hidden * self.experts
        layer = self.attention_weights + router + self.per_token * self.mlp_weights
        products = tokens * self.layers * layer + rows * self.hidden * self.vocabulary
        return 2 * products + 4 * pairs * self.layers * self.heads * self.head_size


@attrs.frozen
class Model:
    """A model that can be benchmarked."""

    name: str
    config: Mapping[str, Any]
    max_model_len: int
    settings: Mapping[str, Any] = attrs.field(factory=dict)
    """Of the engine, where others than `ENGINE`."""

    def sizes(self) -> Sizes:
        c = self.config
        if "layers" in c:
            return Sizes(
                layers=c["layers"],
                hidden=c["hidden"],
                heads=c["heads"],
                kv_heads=c["kv_heads"],
                head_size=c["head_size"],
                inner=c["intermediate"],
                vocabulary=c["vocab_size"],
            )
        return Sizes(
            layers=c["num_hidden_layers"],
            hidden=c["hidden_size"],
            heads=c["num_attention_heads"],
            kv_heads=c["num_key_value_heads"],
            head_size=c.get("head_dim", c["hidden_size"] // c["num_attention_heads"]),
            inner=c.get("moe_intermediate_size", c["intermediate_size"]),
            vocabulary=c["vocab_size"],
            experts=c.get("num_experts", 0),
            per_token=c.get("num_experts_per_tok", 1),
        )

    def write(self, folder: Path) -> Path:
        """A folder with the configuration alone."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        return folder


ENGINE: Mapping[str, Any] = {
    "max_num_seqs": 256,
    "max_num_batched_tokens": 16_384,
    "gpu_memory_utilization": 0.85,
    "skip_tokenizer_init": True,
}
"""Settings of the reference runs."""

_SMALL = {
    "max_num_seqs": 16,
    "max_num_batched_tokens": 128,
    "num_gpu_blocks_override": 64,
    "platform": "cpu",
    "async_scheduling": False,
    "dtype": "float32",
}

MODELS: Mapping[str, Model] = {
    model.name: model
    for model in (
        Model("llama-3.1-8b", LLAMA_8B, 36_864),
        Model("qwen3-0.6b", QWEN3_600M, 8_192),
        Model("qwen3-30b-a3b", QWEN3_30B, 8_192),
        Model("tiny", {"architectures": ["PegboardTiny"], **TINY}, 256, _SMALL),
    )
}

CHECKED_LAYERS = 2
_SHARPNESS = 2.5
"""Standard deviation of attention scores: at 1, a long context would average its values away."""

Tensor = tuple[str, tuple[int, ...], float, float]
"""Name in a file, shape, mean and standard deviation."""


def write_weights(model: Model, folder: Path, seed: int = 1) -> Path:
    """`model` with `CHECKED_LAYERS` layers, and normally distributed weights: outputs of layers
    about 1, logits about 2, so that a fault of any part moves log-probabilities."""
    import torch
    from safetensors.torch import save_file

    if "layers" in model.config:
        from pegboard.testing.checkpoints import write_tiny_model

        own: dict[str, Any] = {name: n for name, n in TINY.items() if name != "vocab_size"}
        return write_tiny_model(folder, seed=seed, **own)
    config = {**model.config, "num_hidden_layers": CHECKED_LAYERS}
    if "max_window_layers" in config:
        config["max_window_layers"] = CHECKED_LAYERS
    short = attrs.evolve(model, config=config)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    draws = torch.Generator(device).manual_seed(seed)
    tensors = {}
    for name, shape, mean, deviation in _tensors(short):
        values = torch.randn(shape, generator=draws, device=device)
        tensors[name] = values.mul_(deviation).add_(mean).to(torch.bfloat16).cpu()
    short.write(folder)
    save_file(tensors, str(folder / "model.safetensors"))
    return folder


def _matrix(name: str, rows: int, columns: int, gain: float = 1.0) -> Tensor:
    """A product with it makes numbers of deviation `gain` out of those of 1."""
    return f"{name}.weight", (rows, columns), 0.0, gain / math.sqrt(columns)


def _norm(name: str, size: int, mean: float = 1.0) -> Tensor:
    return f"{name}.weight", (size,), mean, 0.1 * mean


def _tensors(model: Model) -> Iterator[Tensor]:
    s = model.sizes()
    if model.config["tie_word_embeddings"]:
        yield _matrix("model.embed_tokens", s.vocabulary, s.hidden, 2.0)
    else:
        yield "model.embed_tokens.weight", (s.vocabulary, s.hidden), 0.0, 1.0
        yield _matrix("lm_head", s.vocabulary, s.hidden, 2.0)
    yield _norm("model.norm", s.hidden)
    for number in range(s.layers):
        base = f"model.layers.{number}"
        yield _norm(f"{base}.input_layernorm", s.hidden)
        yield _norm(f"{base}.post_attention_layernorm", s.hidden)
        normed = model.config["model_type"].startswith("qwen3")
        yield from _attention_tensors(s, f"{base}.self_attn", normed)
        yield from _mlp_tensors(s, f"{base}.mlp")


def _attention_tensors(s: Sizes, base: str, normed: bool) -> Iterator[Tensor]:
    query, shared = s.heads * s.head_size, s.kv_heads * s.head_size
    if normed:
        yield _norm(f"{base}.q_norm", s.head_size, _SHARPNESS)
        yield _norm(f"{base}.k_norm", s.head_size)
    yield _matrix(f"{base}.q_proj", query, s.hidden, 1.0 if normed else _SHARPNESS)
    yield _matrix(f"{base}.k_proj", shared, s.hidden)
    yield _matrix(f"{base}.v_proj", shared, s.hidden)
    yield _matrix(f"{base}.o_proj", s.hidden, query)


def _mlp_tensors(s: Sizes, base: str) -> Iterator[Tensor]:
    if s.experts:
        yield _matrix(f"{base}.gate", s.experts, s.hidden, 2.0)
    for block in [f"{base}.experts.{number}" for number in range(s.experts)] or [base]:
        yield _matrix(f"{block}.gate_proj", s.inner, s.hidden)
        yield _matrix(f"{block}.up_proj", s.inner, s.hidden)
        yield _matrix(f"{block}.down_proj", s.hidden, s.inner, 2.0)
