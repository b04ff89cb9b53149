"""How checkpoints name the parts of a Llama model. No torch."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from pegboard.api.model import Skip, WeightMap, WeightRule
from pegboard.nn import cache_scale_rules
from pegboard_model_llama.config import LlamaConfig

__all__ = ["NeighbourPairs", "weight_map"]


@attrs.frozen
class NeighbourPairs:
    """Undoes the row order of q and k in GGUF files.

    There the two features that rotate together are neighbours in a head; here, as in Hugging Face
    files, they are half a head apart.
    """

    head_size: int

    def index(self, rows: int) -> Sequence[int]:
        half = self.head_size // 2
        return [
            head + 2 * pair + side
            for head in range(0, rows, self.head_size)
            for side in (0, 1)
            for pair in range(half)
        ]


_TARGETS = (
    # Hugging Face name within a layer, GGUF name within a block, target within a layer, part
    ("input_layernorm", "attn_norm", "attention_norm", 0),
    ("self_attn.q_proj", "attn_q", "attention.qkv", 0),
    ("self_attn.k_proj", "attn_k", "attention.qkv", 1),
    ("self_attn.v_proj", "attn_v", "attention.qkv", 2),
    ("self_attn.o_proj", "attn_output", "attention.out", 0),
    ("post_attention_layernorm", "ffn_norm", "mlp_norm", 0),
    ("mlp.gate_proj", "ffn_gate", "mlp.gate_up", 0),
    ("mlp.up_proj", "ffn_up", "mlp.gate_up", 1),
    ("mlp.down_proj", "ffn_down", "mlp.down", 0),
)


def weight_map(config: LlamaConfig, kind: str) -> WeightMap:
    """Rules and skips for checkpoints of `kind`, ``"hf"`` or ``"gguf"``."""
    return _gguf(config) if kind == "gguf" else _hf(config)


def _hf(config: LlamaConfig) -> WeightMap:
    layers = [
        WeightRule(f"model.layers.{{i}}.{name}", f"layers.{{i}}.{target}", part)
        for name, _, target, part in _TARGETS
    ]
    ends = [WeightRule("model.embed_tokens", "embed"), WeightRule("model.norm", "norm")]
    skips = [Skip("model.layers.*.rotary_emb.inv_freq", "computed from the configuration")]
    if config.tied:
        skips.append(Skip("lm_head.weight", "the output head is tied to the embedding"))
    else:
        ends.append(WeightRule("lm_head", "head"))
    scales = cache_scale_rules("model.layers.{i}.self_attn", "layers.{i}.attention.cache")
    return WeightMap((*ends, *layers, *scales), tuple(skips))


def _gguf(config: LlamaConfig) -> WeightMap:
    order = NeighbourPairs(config.head_size)
    layers = [
        WeightRule(
            f"blk.{{i}}.{name}",
            f"layers.{{i}}.{target}",
            part,
            order if name in ("attn_q", "attn_k") else None,
        )
        for _, name, target, part in _TARGETS
    ]
    ends = [
        WeightRule("token_embd", "embed"),
        WeightRule("output_norm", "norm"),
        WeightRule("rope_freqs", "rope"),
    ]
    if not config.tied:
        ends.append(WeightRule("output", "head"))
    skips = (Skip("blk.*.attn_rot_embd.weight", "computed from the metadata"),)
    return WeightMap((*ends, *layers), skips)
