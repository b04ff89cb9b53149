"""The wiring of the Gemma family."""

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
    NormedAfter,
    RMSNorm,
    Rope,
)
from pegboard_model_gemma.config import GemmaConfig

__all__ = ["Gemma", "build"]


class Gemma(Decoder):
    """Scaled embedding, decoder layers of two kinds, final norm, head with bounded logits."""

    def __init__(self, ctx: BuildContext) -> None:
        super().__init__()
        config: GemmaConfig = ctx.config
        hidden, vocab = config.hidden_size, config.vocab_size
        self.embed = Embedding(ctx, "embed", vocab, hidden, tied=config.tied, scale=hidden**0.5)
        self.rope, self.local_rope = _ropes(ctx, config)
        self.layers = torch.nn.ModuleList(
            _decoder_layer(ctx, config, self.local_rope if local else self.rope, layer)
            for layer, local in enumerate(config.local)
        )
        self.norm = RMSNorm(ctx, "norm", hidden, config.norm_eps, wide=True)
        tied = self.embed if config.tied else None
        self.head = Head(ctx, "head", vocab, hidden, tied=tied, soft_cap=config.logit_cap)


def _ropes(ctx: BuildContext, config: GemmaConfig) -> tuple[Rope, Rope]:
    """Of full attention and of windows; one module where they are the same."""
    size, positions = config.head_size, config.max_positions
    rope = Rope(ctx, "rope", config.rope, size, positions)
    if config.local_rope == config.rope:
        return rope, rope
    return rope, Rope(ctx, "local_rope", config.local_rope, size, positions)


def _decoder_layer(ctx: BuildContext, config: GemmaConfig, rope: Rope, layer: int) -> DecoderLayer:
    name, hidden = f"layers.{layer}", config.hidden_size

    def norm(part: str) -> RMSNorm:
        return RMSNorm(ctx, f"{name}.{part}", hidden, config.norm_eps, wide=True)

    attention: torch.nn.Module = AttentionBlock(
        ctx, f"{name}.attention", _attention_shape(config), rope, config.slot_key(layer)
    )
    mlp: torch.nn.Module = GatedMLP(
        ctx, f"{name}.mlp", hidden, config.inner_size, activation="gelu_tanh"
    )
    if config.generation.after_norms:
        attention = NormedAfter(attention, norm("attention_after"))
        mlp = NormedAfter(mlp, norm("mlp_after"))
    return DecoderLayer(norm("attention_norm"), attention, norm("mlp_norm"), mlp)


def _attention_shape(config: GemmaConfig) -> AttentionShape:
    return AttentionShape(
        config.hidden_size,
        config.heads,
        config.kv_heads,
        config.head_size,
        bias=config.bias,
        output_bias=config.bias,
        scale=config.scale,
        soft_cap=config.attention_cap,
        qk_norm_eps=config.norm_eps if config.generation.qk_norm else None,
    )


def build(ctx: BuildContext) -> Gemma:
    """Build the model without weights; the loader fills it."""
    if ctx.layers is not None:
        raise UnsupportedError("the gemma family does not support pipeline parallelism yet")
    return Gemma(ctx)
