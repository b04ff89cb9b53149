"""How checkpoints name the parts of a Qwen model. No torch."""

from __future__ import annotations

from collections.abc import Iterator

from pegboard.api.model import Skip, WeightMap, WeightRule
from pegboard.nn import cache_scale_rules
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

_SPARSE = (("mlp.gate", "ffn_gate_inp", "mlp.router", 0),)
_SHARED = (
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp", "mlp.shared.gate_up", 0),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp", "mlp.shared.gate_up", 1),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp", "mlp.shared.down", 0),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp", "mlp.shared_gate", 0),
)
_EXPERTS = (
    # Each expert has its own tensors in the one kind of file, all are one tensor in the other.
    ("mlp.experts.{e}.gate_proj", "ffn_gate_exps"),
    ("mlp.experts.{e}.up_proj", "ffn_up_exps"),
    ("mlp.experts.{e}.down_proj", "ffn_down_exps"),
)


def weight_map(config: QwenConfig, kind: str) -> WeightMap:
    """Rules and skips for checkpoints of `kind`, ``"hf"`` or ``"gguf"``."""
    gguf = kind == "gguf"
    before = "blk.{i}." if gguf else "model.layers.{i}."
    rules = [
        WeightRule(f"{before}{row[gguf]}", f"layers.{{i}}.{target}", part)
        for *row, target, part in _names(config)
    ]
    if config.mixture is not None:
        count = 0 if gguf else config.mixture.experts
        rules += [
            WeightRule(f"{before}{row[gguf]}", "layers.{i}.mlp.experts", part, experts=count)
            for part, row in enumerate(_EXPERTS)
        ]
    if not gguf:
        rules += cache_scale_rules(f"{before}self_attn", "layers.{i}.attention.cache")
    ends, skips = _ends(config, gguf)
    return WeightMap((*ends, *rules), skips)


def _names(config: QwenConfig) -> Iterator[tuple[str, str, str, int]]:
    """Rows of the tables above that the model has, experts aside."""
    yield from _LAYER
    yield from _HEAD_NORMS if config.qk_norm else ()
    yield from () if all(config.sparse) else _DENSE
    yield from _SPARSE if any(config.sparse) else ()
    if config.mixture is not None and config.mixture.shared_size:
        yield from _SHARED


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
