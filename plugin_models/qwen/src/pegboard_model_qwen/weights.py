"""How checkpoints name the parts of a Qwen model. No torch."""

from __future__ import annotations

from pegboard.api.model import Skip, WeightMap, WeightRule
from pegboard_model_qwen.config import QwenConfig

__all__ = ["weight_map"]

_LAYER = (
    # Hugging Face name within a layer, GGUF name within a block, target within a layer, part
    ("input_layernorm", "attn_norm", "attention_norm", 0),
    ("self_attn.q_proj", "attn_q", "attention.qkv", 0),
    ("self_attn.k_proj", "attn_k", "attention.qkv", 1),
    ("self_attn.v_proj", "attn_v", "attention.qkv", 2),
    ("self_attn.o_proj", "attn_output", "attention.out", 0),
    ("post_attention_layernorm", "ffn_norm", "mlp_norm", 0),
)
_HEAD_NORMS = (
    ("self_attn.q_norm", "attn_q_norm", "attention.q_norm", 0),
    ("self_attn.k_norm", "attn_k_norm", "attention.k_norm", 0),
)
_DENSE = (
    ("mlp.gate_proj", "ffn_gate", "mlp.gate_up", 0),
    ("mlp.up_proj", "ffn_up", "mlp.gate_up", 1),
    ("mlp.down_proj", "ffn_down", "mlp.down", 0),
)


def weight_map(config: QwenConfig, kind: str) -> WeightMap:
    """Rules and skips for checkpoints of `kind`, ``"hf"`` or ``"gguf"``."""
    gguf = kind == "gguf"
    before = "blk.{i}." if gguf else "model.layers.{i}."
    names = (*_LAYER, *(_HEAD_NORMS if config.qk_norm else ()), *_DENSE)
    rules = [
        WeightRule(f"{before}{row[gguf]}", f"layers.{{i}}.{target}", part)
        for *row, target, part in names
    ]
    ends, skips = _ends(config, gguf)
    return WeightMap((*ends, *rules), skips)


def _ends(config: QwenConfig, gguf: bool) -> tuple[list[WeightRule], tuple[Skip, ...]]:
    """Embedding, last norm and head, and what is left out."""
    embed, norm, head = (
        ("token_embd", "output_norm", "output")
        if gguf
        else ("model.embed_tokens", "model.norm", "lm_head")
    )
    rules = [WeightRule(embed, "embed"), WeightRule(norm, "norm")]
    skips = []
    if not gguf:
        skips.append(Skip("model.layers.*.rotary_emb.inv_freq", "computed from the configuration"))
    if not config.tied:
        rules.append(WeightRule(head, "head"))
    elif not gguf:
        skips.append(Skip("lm_head.weight", "the output head is tied to the embedding"))
    return rules, tuple(skips)
