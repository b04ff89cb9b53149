"""Ops of `pegboard.nn`, which gives their signatures, in fewer passes over memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F

__all__ = ["add_rms_norm", "rms_norm", "rope", "silu_mul"]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Rounds once, after the product with the weight. Torch's own makes more passes on a CPU."""
    wide = x.float()
    scale = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return torch.mul(wide, scale).mul_(weight).to(x.dtype)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds into `x`, which spares an allocation."""
    total = x.add_(residual)
    return rms_norm(total, weight, eps), total


def rope(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """In place, in float32."""
    half = table.shape[-1] // 2
    cos, sin = table.index_select(0, positions).unsqueeze(1).chunk(2, -1)
    wide = x.float()
    low, high = wide[..., :half], wide[..., half : 2 * half]
    turned = torch.mul(low, cos).addcmul_(high, sin, value=-1)
    high.mul_(cos).addcmul_(low, sin)
    low.copy_(turned)
    return wide.to(x.dtype)


def silu_mul(packed: torch.Tensor) -> torch.Tensor:
    """In place, in the first half of `packed`."""
    gate, up = packed.chunk(2, -1)
    return F.silu(gate, inplace=True).mul_(up)
