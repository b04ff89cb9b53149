"""The ``tiny-hybrid`` family, written from the blocks of `pegboard.nn`."""

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
    RecurrentBlock,
    RMSNorm,
    Rope,
    RopeConfig,
)
from pegboard.testing.hybrid_config import HybridConfig

__all__ = ["HybridModel", "build"]

EPS = 1e-5


class HybridModel(Decoder):
    """Embedding, layers, norm, head."""

    def __init__(self, ctx: BuildContext) -> None:
        super().__init__()
        config: HybridConfig = ctx.config
        rope = Rope(ctx, "rope", RopeConfig(), config.head_size, config.max_positions)
        self.embed = Embedding(ctx, "embed", config.vocab_size, config.hidden)
        self.layers = torch.nn.ModuleList(
            _layer(ctx, number, kind, rope) for number, kind in enumerate(config.layer_kinds)
        )
        self.norm = RMSNorm(ctx, "norm", config.hidden, EPS)
        self.head = Head(ctx, "head", config.vocab_size, config.hidden)


def _layer(ctx: BuildContext, number: int, kind: str, rope: Rope) -> DecoderLayer:
    config: HybridConfig = ctx.config
    prefix = f"layers.{number}"
    return DecoderLayer(
        RMSNorm(ctx, f"{prefix}.mixer_norm", config.hidden, EPS),
        _mixer(ctx, number, kind, rope),
        RMSNorm(ctx, f"{prefix}.mlp_norm", config.hidden, EPS),
        GatedMLP(ctx, f"{prefix}.mlp", config.hidden, config.intermediate),
    )


def _mixer(ctx: BuildContext, number: int, kind: str, rope: Rope) -> torch.nn.Module:
    config: HybridConfig = ctx.config
    if kind == "recurrent":
        name, slot = f"layers.{number}.state", f"{number}.state"
        return RecurrentBlock(ctx, name, config.shape, slot, EPS)
    shape = AttentionShape(config.hidden, config.heads, config.kv_heads, config.head_size)
    return AttentionBlock(ctx, f"layers.{number}.attn", shape, rope, f"{number}.self")


def build(ctx: BuildContext) -> HybridModel:
    """Entry of the family's descriptor."""
    return HybridModel(ctx)
