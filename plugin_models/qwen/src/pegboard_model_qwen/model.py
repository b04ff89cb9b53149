"""The wiring of the Qwen family."""

from __future__ import annotations

import torch

from pegboard.api.model import BuildContext
from pegboard.errors import UnsupportedError
from pegboard.nn import (
    AttentionBlock,
    AttentionShape,
    Decoder,
    DecoderLayer,
    Embedding,
    GatedMLP,
    Head,
    MoE,
    RMSNorm,
    Rope,
)
from pegboard_model_qwen.config import QwenConfig

__all__ = ["Qwen", "build"]


class Qwen(Decoder):
    """Embedding, decoder layers with pre-norm, final norm, head."""

    def __init__(self, ctx: BuildContext) -> None:
        super().__init__()
        config: QwenConfig = ctx.config
        hidden, vocab = config.hidden_size, config.vocab_size
        self.embed = Embedding(ctx, "embed", vocab, hidden, tied=config.tied)
        self.rope = Rope(ctx, "rope", config.rope, config.head_size, config.max_positions)
        self.layers = torch.nn.ModuleList(
            _decoder_layer(ctx, config, self.rope, layer) for layer in range(config.layers)
        )
        self.norm = RMSNorm(ctx, "norm", hidden, config.norm_eps)
        self.head = Head(ctx, "head", vocab, hidden, tied=self.embed if config.tied else None)


def _decoder_layer(ctx: BuildContext, config: QwenConfig, rope: Rope, layer: int) -> DecoderLayer:
    name, hidden = f"layers.{layer}", config.hidden_size
    return DecoderLayer(
        RMSNorm(ctx, f"{name}.attention_norm", hidden, config.norm_eps),
        AttentionBlock(
            ctx, f"{name}.attention", _attention_shape(config), rope, config.slot_key(layer)
        ),
        RMSNorm(ctx, f"{name}.mlp_norm", hidden, config.norm_eps),
        _mlp(ctx, config, layer),
    )


def _mlp(ctx: BuildContext, config: QwenConfig, layer: int) -> torch.nn.Module:
    prefix, mixture = f"layers.{layer}.mlp", config.mixture
    if mixture is None or not config.sparse[layer]:
        return GatedMLP(ctx, prefix, config.hidden_size, config.inner_size)
    return MoE(
        ctx,
        prefix,
        config.hidden_size,
        mixture.inner_size,
        mixture.experts,
        mixture.top_k,
        mixture.renormalise,
        layer=layer,
        shared_size=mixture.shared_size,
    )


def _attention_shape(config: QwenConfig) -> AttentionShape:
    return AttentionShape(
        config.hidden_size,
        config.heads,
        config.kv_heads,
        config.head_size,
        bias=config.qkv_bias,
        output_bias=config.output_bias,
        qk_norm_eps=config.norm_eps if config.qk_norm else None,
    )


def build(ctx: BuildContext) -> Qwen:
    """Build the model without weights; the loader fills it."""
    if ctx.layers is not None:
        raise UnsupportedError("the qwen family does not support pipeline parallelism yet")
    return Qwen(ctx)
