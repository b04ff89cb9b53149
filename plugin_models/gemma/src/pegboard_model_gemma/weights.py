"""How checkpoints name the parts of a Gemma model. No torch."""

from __future__ import annotations

from collections.abc import Iterator

from pegboard.api.model import Skip, WeightMap, WeightRule
from pegboard.nn import cache_scale_rules
from pegboard_model_gemma.config import GemmaConfig

__all__ = ["weight_map"]

_PRODUCTS = (
    # Hugging Face name within a layer, GGUF name within a block, target within a layer, part
    ("self_attn.q_proj", "attn_q", "attention.qkv", 0),
    ("self_attn.k_proj", "attn_k", "attention.qkv", 1),
    ("self_attn.v_proj", "attn_v", "attention.qkv", 2),
    ("self_attn.o_proj", "attn_output", "attention.out", 0),
    ("mlp.gate_proj", "ffn_gate", "mlp.gate_up", 0),
    ("mlp.up_proj", "ffn_up", "mlp.gate_up", 1),
    ("mlp.down_proj", "ffn_down", "mlp.down", 0),
)
_NORMS = (
    ("input_layernorm", "attn_norm", "attention_norm"),
    ("post_attention_layernorm", "ffn_norm", "mlp_norm"),
)
_FOUR_NORMS = (
    ("input_layernorm", "attn_norm", "attention_norm"),
    ("post_attention_layernorm", "post_attention_norm", "attention_after"),
    ("pre_feedforward_layernorm", "ffn_norm", "mlp_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm", "mlp_after"),
)
_HEAD_NORMS = (
    ("self_attn.q_norm", "attn_q_norm", "attention.q_norm"),
    ("self_attn.k_norm", "attn_k_norm", "attention.k_norm"),
)


def weight_map(config: GemmaConfig, kind: str) -> WeightMap:
    """Rules and skips for checkpoints of `kind`, ``"hf"`` or ``"gguf"``."""
    return _gguf(config) if kind == "gguf" else _hf(config)


def _norms(config: GemmaConfig) -> Iterator[tuple[str, str, str]]:
    yield from _FOUR_NORMS if config.generation.after_norms else _NORMS
    yield from _HEAD_NORMS if config.generation.qk_norm else ()


def _hf(config: GemmaConfig) -> WeightMap:
    """Norm weights are stored as their distance from 1."""
    products = [
        WeightRule(f"model.layers.{{i}}.{name}", f"layers.{{i}}.{target}", part)
        for name, _, target, part in _PRODUCTS
    ]
    norms = [
        WeightRule(f"model.layers.{{i}}.{name}", f"layers.{{i}}.{target}", offset=1.0)
        for name, _, target in _norms(config)
    ]
    ends = [
        WeightRule("model.embed_tokens", "embed"),
        WeightRule("model.norm", "norm", offset=1.0),
    ]
    skips = [Skip("model.layers.*.rotary_emb.inv_freq", "computed from the configuration")]
    if config.tied:
        skips.append(Skip("lm_head.weight", "the output head is tied to the embedding"))
    else:
        ends.append(WeightRule("lm_head", "head"))
    scales = cache_scale_rules("model.layers.{i}.self_attn", "layers.{i}.attention.cache")
    return WeightMap((*ends, *products, *norms, *scales), tuple(skips))


def _gguf(config: GemmaConfig) -> WeightMap:
    """Norm weights are stored whole."""
    products = [
        WeightRule(f"blk.{{i}}.{name}", f"layers.{{i}}.{target}", part)
        for _, name, target, part in _PRODUCTS
    ]
    norms = [
        WeightRule(f"blk.{{i}}.{name}", f"layers.{{i}}.{target}")
        for _, name, target in _norms(config)
    ]
    ends = [WeightRule("token_embd", "embed"), WeightRule("output_norm", "norm")]
    if not config.tied:
        ends.append(WeightRule("output", "head"))
    return WeightMap((*ends, *products, *norms))
