"""Blocks that decoder families are put together from. They pass ``(x, residual)``; fused ops are
used inside.
"""

from __future__ import annotations

import attrs
import torch

from pegboard.api.attention import AttentionInputs
from pegboard.api.model import Batch, BuildContext
from pegboard.nn.attention import Attention
from pegboard.nn.layers import Linear, RMSNorm
from pegboard.nn.rope import Rope

__all__ = ["AttentionBlock", "AttentionShape", "DecoderLayer", "GatedMLP"]


@attrs.frozen
class AttentionShape:
    """Sizes of one self-attention, over all ranks."""

    hidden_size: int
    heads: int
    kv_heads: int
    head_size: int
    bias: bool = False
    """On q, k and v."""
    output_bias: bool = False
    scale: float | None = None
    """Of the scores; None for ``head_size ** -0.5``."""


class AttentionBlock(torch.nn.Module):
    """Causal self-attention with rotary positions: ``x [T, hidden] -> [T, hidden]``.

    Weights: ``<prefix>.qkv`` with the parts q, k, v and ``<prefix>.out``.
    """

    def __init__(
        self, ctx: BuildContext, prefix: str, shape: AttentionShape, rope: Rope, slot_key: str
    ) -> None:
        super().__init__()
        self.shape = shape
        width, kv_width = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
        self.qkv = Linear(
            ctx,
            f"{prefix}.qkv",
            shape.hidden_size,
            (width, kv_width, kv_width),
            "column",
            bias=shape.bias,
        )
        self.rope = rope
        self.attention = Attention(
            slot_key, shape.heads, shape.kv_heads, shape.head_size, shape.scale
        )
        self.out = Linear(
            ctx, f"{prefix}.out", width, (shape.hidden_size,), "row", bias=shape.output_bias
        )

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        shape = self.shape
        packed = self.qkv(x, batch).unflatten(-1, (-1, shape.head_size))
        turning = shape.heads + shape.kv_heads
        turned = self.rope(packed[:, :turning], batch)
        inputs = AttentionInputs(
            turned[:, : shape.heads], turned[:, shape.heads :], packed[:, turning:]
        )
        attended: torch.Tensor = self.out(self.attention(inputs, batch).flatten(1), batch)
        return attended


class GatedMLP(torch.nn.Module):
    """``down(silu(gate(x)) * up(x))``. Weights: ``<prefix>.gate_up`` with two parts,
    ``<prefix>.down``.
    """

    def __init__(
        self, ctx: BuildContext, prefix: str, hidden_size: int, inner_size: int, bias: bool = False
    ) -> None:
        super().__init__()
        parts = (inner_size, inner_size)
        self.gate_up = Linear(ctx, f"{prefix}.gate_up", hidden_size, parts, "column", bias=bias)
        self.down = Linear(ctx, f"{prefix}.down", inner_size, (hidden_size,), "row", bias=bias)
        self._activate = ctx.ops["silu_mul"]

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        gated: torch.Tensor = self._activate(self.gate_up(x, batch))
        down: torch.Tensor = self.down(gated, batch)
        return down


class DecoderLayer(torch.nn.Module):
    """Norm, attention, norm, MLP, each half added to the residual by the norm that follows it."""

    def __init__(
        self,
        attention_norm: RMSNorm,
        attention: torch.nn.Module,
        mlp_norm: RMSNorm,
        mlp: torch.nn.Module,
    ) -> None:
        super().__init__()
        self.attention_norm = attention_norm
        self.attention = attention
        self.mlp_norm = mlp_norm
        self.mlp = mlp

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``(x, residual) -> (x, residual)``, both ``[T, hidden]``; their sum is the layer's
        output.
        """
        x, residual = self.attention_norm.add(x, residual, batch)
        x, residual = self.mlp_norm.add(self.attention(x, batch), residual, batch)
        return self.mlp(x, batch), residual
