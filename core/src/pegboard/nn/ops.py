"""The named operations, each in plain torch: what they mean, and the oracle of every faster
version.

An op is a pure function of its arguments unless its docstring says otherwise. A version must agree
with the plain one within the op's tolerance, for every shape that the docstring allows, zero rows
included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import attrs
import torch
import torch.nn.functional as F

from pegboard.nn.cache_ops import qk_norm_rope_store, store_kv
from pegboard.nn.moe_ops import moe_experts, moe_gate, moe_route
from pegboard.nn.step_ops import decode_inputs
from pegboard.sampling.choose import choose

__all__ = [
    "OPS",
    "Op",
    "add_rms_norm",
    "choose",
    "gelu_tanh_mul",
    "linear",
    "moe_experts",
    "moe_gate",
    "moe_route",
    "qk_norm_rope_store",
    "rms_norm",
    "rope",
    "silu_mul",
    "soft_cap",
    "store_kv",
]

_ROUNDING = MappingProxyType({"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3})


@attrs.frozen(eq=False)
class Op:
    """One named operation."""

    name: str
    plain: Callable[..., Any]
    tolerance: Mapping[str, float]
    """Largest ``|version - plain| / (1 + |plain|)`` by dtype, by torch name."""


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``x @ weight.T`` in the dtype of `x`: ``x [T, K]``, ``weight [N, K]`` -> ``[T, N]``.

    The product is computed in the dtype of `weight`, with sums in float32.
    """
    return F.linear(x.to(weight.dtype), weight).to(x.dtype)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / sqrt(mean(x²) + eps) * weight`` over the last axis; ``x [..., H]``, ``weight [H]`` in
    the dtype of `x` or a narrower one.

    The quotient is computed in float32 and rounded to the dtype of `x` before the product. Source:
    Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return wide.to(x.dtype) * weight


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(rms_norm(x + residual), x + residual)``; both inputs ``[..., H]``.

    A version may overwrite `x`, never `residual`; the caller uses the results only.
    """
    total = x + residual
    return rms_norm(total, weight, eps), total


def silu_mul(packed: torch.Tensor) -> torch.Tensor:
    """Gated activation ``silu(gate) * up`` of ``packed [..., 2 I]`` = gate | up; gives ``[...,
    I]``.

    A version may overwrite `packed`. Source: Shazeer, "GLU Variants Improve Transformer", 2020
    (SwiGLU).
    """
    gate, up = packed.chunk(2, -1)
    return F.silu(gate) * up


def gelu_tanh_mul(packed: torch.Tensor) -> torch.Tensor:
    """Gated activation ``gelu(gate) * up`` of ``packed [..., 2 I]`` = gate | up; gives ``[...,
    I]``.

    With the tanh approximation of GELU. A version may overwrite `packed`. Source: Shazeer, "GLU
    Variants Improve Transformer", 2020 (GEGLU); Hendrycks and Gimpel, "Gaussian Error Linear
    Units", 2016.
    """
    gate, up = packed.chunk(2, -1)
    return F.gelu(gate, approximate="tanh") * up


def soft_cap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """``cap * tanh(x / cap)``, which keeps small values and bounds large ones by `cap`.

    A version may overwrite `x`. Source: Bello et al., "Neural Combinatorial Optimization with
    Reinforcement Learning", 2016.
    """
    return torch.tanh(x / cap) * cap


def rope(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rotate the first R of D features of each head by position.

    ``x [T, heads, D]``, ``positions int64 [T]``, ``table float32 [positions, R]`` = cos | sin, R
    even and at most D. Feature i is paired with i + R/2 (halves, not neighbours). Computed in
    float32. A version may overwrite `x`; the caller uses the result only. Source: Su et al.,
    "RoFormer", 2021.
    """
    rotated = table.shape[-1]
    cos, sin = table.index_select(0, positions).unsqueeze(1).chunk(2, -1)
    low, high = x[..., : rotated // 2].float(), x[..., rotated // 2 : rotated].float()
    turned = torch.cat((low * cos - high * sin, high * cos + low * sin), -1).to(x.dtype)
    return turned if rotated == x.shape[-1] else torch.cat((turned, x[..., rotated:]), -1)


OPS: Mapping[str, Op] = MappingProxyType(
    {
        op.name: op
        for op in (
            Op("add_rms_norm", add_rms_norm, _ROUNDING),
            Op("choose", choose, _ROUNDING),
            Op("gelu_tanh_mul", gelu_tanh_mul, _ROUNDING),
            Op("decode_inputs", decode_inputs, _ROUNDING),
            Op("linear", linear, _ROUNDING),
            Op("moe_experts", moe_experts, _ROUNDING),
            Op("moe_gate", moe_gate, _ROUNDING),
            Op("moe_route", moe_route, _ROUNDING),
            Op("qk_norm_rope_store", qk_norm_rope_store, _ROUNDING),
            Op("rms_norm", rms_norm, _ROUNDING),
            Op("rope", rope, _ROUNDING),
            Op("silu_mul", silu_mul, _ROUNDING),
            Op("soft_cap", soft_cap, _ROUNDING),
            Op("store_kv", store_kv, _ROUNDING),
        )
    }
)
"""Every op by name."""
