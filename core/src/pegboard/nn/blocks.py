"""Blocks that decoder families are put together from. They pass ``(x, residual)``; fused ops are
used inside.
"""

from __future__ import annotations

import attrs
import torch

from pegboard.api.attention import AttentionInputs
from pegboard.api.kv import kv_heads_on_rank
from pegboard.api.model import Batch, BuildContext
from pegboard.errors import ConfigError
from pegboard.nn.attention import Attention
from pegboard.nn.layers import Linear, RMSNorm
from pegboard.nn.rope import Rope

__all__ = ["AttentionBlock", "AttentionShape", "DecoderLayer", "GatedMLP", "NormedAfter"]


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
    soft_cap: float | None = None
    """Bound of the scores; None for no bound."""
    qk_norm_eps: float | None = None
    """Each head of q and k passes an RMS norm (`RMSNorm`, wide) with this epsilon before it is
    rotated; None for no norms."""

    def on_rank(self, world: int) -> AttentionShape:
        """The share of one of `world` ranks. Raises `ConfigError` if heads cannot be divided."""
        heads, rest = divmod(self.heads, world)
        if rest:
            raise ConfigError(
                f"{self.heads} attention heads cannot be divided among {world} ranks; "
                "tensor_parallel_size must divide them"
            )
        return attrs.evolve(self, heads=heads, kv_heads=kv_heads_on_rank(self.kv_heads, world))


class AttentionBlock(torch.nn.Module):
    """Causal self-attention with rotary positions: ``x [T, hidden] -> [T, hidden]``.

    Weights: ``<prefix>.qkv`` with the parts q, k, v and ``<prefix>.out``; with norms also
    ``<prefix>.q_norm`` and ``<prefix>.k_norm``, each ``[head_size]``; ``<prefix>.cache`` for scales
    of 8-bit keys and values, if the checkpoint has any (`CacheScales`).
    """

    def __init__(
        self, ctx: BuildContext, prefix: str, shape: AttentionShape, rope: Rope, slot_key: str
    ) -> None:
        super().__init__()
        world = ctx.parallel.world
        self.shape = own = shape.on_rank(world)
        copies = own.kv_heads * world // shape.kv_heads
        width, kv_width = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
        self.qkv = Linear(
            ctx,
            f"{prefix}.qkv",
            shape.hidden_size,
            (width, kv_width, kv_width),
            "column",
            bias=shape.bias,
            copies=(1, copies, copies),
        )
        self.q_norm = _head_norm(ctx, f"{prefix}.q_norm", shape)
        self.k_norm = _head_norm(ctx, f"{prefix}.k_norm", shape)
        self.rope = rope
        self.attention = Attention(
            ctx,
            slot_key,
            own.heads,
            own.kv_heads,
            shape.head_size,
            shape.scale,
            shape.soft_cap,
            prefix=f"{prefix}.cache",
        )
        self._rotate_and_store = ctx.ops.widest("qk_norm_rope_store")
        self.out = Linear(
            ctx, f"{prefix}.out", width, (shape.hidden_size,), "row", bias=shape.output_bias
        )

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        packed = self.qkv(x, batch).unflatten(-1, (-1, self.shape.head_size))
        attended: torch.Tensor = self.out(self._attend(packed, batch).flatten(1), batch)
        return attended

    def _attend(self, packed: torch.Tensor, batch: Batch) -> torch.Tensor:
        """From ``[T, heads + 2 kv_heads, head_size]`` to ``[T, heads, head_size]``."""
        shape = self.shape
        turning = shape.heads + shape.kv_heads
        kv, slots = self.attention.place(batch)
        if slots is not None and self._rotate_and_store is not None:
            table = self.rope.runtime["table"]
            norms = self._norm_weights()
            scales = self.attention.scales
            self._rotate_and_store(
                packed, shape.kv_heads, norms, batch.positions, table, kv, slots, scales
            )
            inputs = AttentionInputs(
                *packed.split((shape.heads, shape.kv_heads, shape.kv_heads), 1)
            )
            return self.attention.attend(inputs, batch)
        turned = self.rope(self._normed(packed[:, :turning], batch), batch)
        inputs = AttentionInputs(
            turned[:, : shape.heads], turned[:, shape.heads :], packed[:, turning:]
        )
        attended: torch.Tensor = self.attention(inputs, batch)
        return attended

    def _norm_weights(self) -> tuple[torch.Tensor, torch.Tensor, float] | None:
        if self.q_norm is None or self.k_norm is None:
            return None
        return (self.q_norm.runtime["weight"], self.k_norm.runtime["weight"], self.q_norm.eps)

    def _normed(self, heads: torch.Tensor, batch: Batch) -> torch.Tensor:
        """``[T, heads + kv_heads, head_size]``, normed where the shape says so."""
        if self.q_norm is None or self.k_norm is None:
            return heads
        query, key = heads.split((self.shape.heads, self.shape.kv_heads), 1)
        return torch.cat((self.q_norm(query, batch), self.k_norm(key, batch)), 1)


def _head_norm(ctx: BuildContext, prefix: str, shape: AttentionShape) -> RMSNorm | None:
    if shape.qk_norm_eps is None:
        return None
    return RMSNorm(ctx, prefix, shape.head_size, shape.qk_norm_eps, wide=True)


class GatedMLP(torch.nn.Module):
    """``down(act(gate(x)) * up(x))``. Weights: ``<prefix>.gate_up`` with two parts,
    ``<prefix>.down``. `activation` names the op ``<activation>_mul``: ``silu`` or ``gelu_tanh``.
    """

    def __init__(
        self,
        ctx: BuildContext,
        prefix: str,
        hidden_size: int,
        inner_size: int,
        bias: bool = False,
        *,
        activation: str = "silu",
    ) -> None:
        super().__init__()
        parts = (inner_size, inner_size)
        self.gate_up = Linear(ctx, f"{prefix}.gate_up", hidden_size, parts, "column", bias=bias)
        self.down = Linear(ctx, f"{prefix}.down", inner_size, (hidden_size,), "row", bias=bias)
        self._activate = ctx.ops[f"{activation}_mul"]

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        gated: torch.Tensor = self._activate(self.gate_up(x, batch))
        down: torch.Tensor = self.down(gated, batch)
        return down


class NormedAfter(torch.nn.Module):
    """``norm(block(x))``: half of a layer whose result is normed before it joins the residual."""

    def __init__(self, block: torch.nn.Module, norm: RMSNorm) -> None:
        super().__init__()
        self.block = block
        self.norm = norm

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        normed: torch.Tensor = self.norm(self.block(x, batch), batch)
        return normed


class Decoder(torch.nn.Module):
    """Embedding, decoder layers, final norm, head: what decoder-only families have in common.

    A family sets the four attributes; a first stage gets ids, a later one `carry`.
    """

    embed: torch.nn.Module
    layers: torch.nn.ModuleList
    """Each ``(x, residual, batch) -> (x, residual)``."""
    norm: torch.nn.Module
    head: torch.nn.Module

    def forward(self, batch: Batch, carry: torch.Tensor | None = None) -> torch.Tensor:
        """Hidden states ``[T, hidden]`` before the last norm."""
        x = self.embed(batch.ids, batch) if carry is None else carry
        residual = None
        for layer in self.layers:
            x, residual = layer(x, residual, batch)
        hidden: torch.Tensor = x if residual is None else x + residual
        return hidden

    def logits(self, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
        """``[L, hidden] -> [L, vocab]``."""
        logits: torch.Tensor = self.head(self.norm(hidden, batch), batch)
        return logits


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
