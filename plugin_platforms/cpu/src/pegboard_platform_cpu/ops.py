"""Ops of `pegboard.nn`, which gives their signatures, in fewer passes over memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F

__all__ = ["add_rms_norm", "rms_norm", "rope"]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Torch's own; it rounds once, after the product with the weight."""
    return F.rms_norm(x, weight.shape, weight, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds into `x`, which spares an allocation."""
    total = x.add_(residual)
    return F.rms_norm(total, weight.shape, weight, eps), total


def rope(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Writes both halves of the result where they belong, without joining copies."""
    half = table.shape[-1] // 2
    cos, sin = table.index_select(0, positions).unsqueeze(1).chunk(2, -1)
    wide = x.float()
    low, high = wide[..., :half], wide[..., half : 2 * half]
    out = torch.empty_like(wide, memory_format=torch.contiguous_format)
    torch.mul(low, cos, out=out[..., :half]).addcmul_(high, sin, value=-1)
    torch.mul(high, cos, out=out[..., half : 2 * half]).addcmul_(low, sin)
    out[..., 2 * half :] = wide[..., 2 * half :]
    return out.to(x.dtype)
