"""The ``tiny`` family: an ordinary decoder, written from the blocks of `pegboard.nn`."""

from __future__ import annotations

import torch

from pegboard.api.model import BuildContext
from pegboard.nn import (
    AttentionBlock,
    AttentionShape,
    Decoder,
    DecoderLayer,
    Embedding,
    GatedMLP,
    Head,
    RMSNorm,
    Rope,
    RopeConfig,
)
from pegboard.testing.tiny_config import TinyConfig

__all__ = ["TinyModel", "build"]

EPS = 1e-5


class TinyModel(Decoder):
    """Embedding, layers, norm, head."""

    def __init__(self, ctx: BuildContext) -> None:
        super().__init__()
        config: TinyConfig = ctx.config
        rope = Rope(ctx, "rope", RopeConfig(), config.head_size, config.max_positions)
        self.embed = Embedding(ctx, "embed", config.vocab_size, config.hidden)
        self.layers = torch.nn.ModuleList(_layer(ctx, i, rope) for i in range(config.layers))
        self.norm = RMSNorm(ctx, "norm", config.hidden, EPS)
        self.head = Head(ctx, "head", config.vocab_size, config.hidden)


def _layer(ctx: BuildContext, number: int, rope: Rope) -> DecoderLayer:
    config: TinyConfig = ctx.config
    prefix = f"layers.{number}"
    shape = AttentionShape(config.hidden, config.heads, config.kv_heads, config.head_size)
    return DecoderLayer(
        RMSNorm(ctx, f"{prefix}.attn_norm", config.hidden, EPS),
        AttentionBlock(ctx, f"{prefix}.attn", shape, rope, f"{number}.self"),
        RMSNorm(ctx, f"{prefix}.mlp_norm", config.hidden, EPS),
        GatedMLP(ctx, f"{prefix}.mlp", config.hidden, config.intermediate),
    )


def build(ctx: BuildContext) -> TinyModel:
    """Entry of the family's descriptor."""
    return TinyModel(ctx)
