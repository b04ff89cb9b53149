"""The wiring: attention, then MLP, each behind a norm of its own."""

import torch

from pegboard.api.model import Batch, BuildContext
from pegboard.nn import (
    AttentionBlock,
    AttentionShape,
    Embedding,
    GatedMLP,
    Head,
    RMSNorm,
    Rope,
    RopeConfig,
)


class MapleLayer(torch.nn.Module):
    def __init__(self, ctx: BuildContext, number: int, rope: Rope) -> None:
        super().__init__()
        config, prefix = ctx.config, f"layers.{number}"
        hidden, eps = config.hidden_size, config.rms_norm_eps
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        shape = AttentionShape(hidden, heads, kv_heads, config.head_size)
        self.norm1 = RMSNorm(ctx, f"{prefix}.norm1", hidden, eps)
        self.attention = AttentionBlock(ctx, f"{prefix}.attention", shape, rope, f"{number}.self")
        self.norm2 = RMSNorm(ctx, f"{prefix}.norm2", hidden, eps)
        self.mlp = GatedMLP(ctx, f"{prefix}.mlp", hidden, config.intermediate_size)

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        x = x + self.attention(self.norm1(x, batch), batch)
        return x + self.mlp(self.norm2(x, batch), batch)


class MapleModel(torch.nn.Module):
    def __init__(self, ctx: BuildContext) -> None:
        super().__init__()
        config = ctx.config
        vocab, hidden, positions = (
            config.vocab_size,
            config.hidden_size,
            config.max_position_embeddings,
        )
        turning = RopeConfig(theta=config.rope_theta)
        rope = Rope(ctx, "rope", turning, config.head_size, positions)
        self.embed = Embedding(ctx, "embed", vocab, hidden, tied=config.tied)
        layers = [MapleLayer(ctx, i, rope) for i in range(config.num_hidden_layers)]
        self.layers = torch.nn.ModuleList(layers)
        self.norm = RMSNorm(ctx, "norm", hidden, config.rms_norm_eps)
        self.head = Head(ctx, "head", vocab, hidden, tied=self.embed if config.tied else None)

    def forward(self, batch: Batch, carry: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embed(batch.ids, batch)
        for layer in self.layers:
            x = layer(x, batch)
        return x

    def logits(self, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
        return self.head(self.norm(hidden, batch), batch)
