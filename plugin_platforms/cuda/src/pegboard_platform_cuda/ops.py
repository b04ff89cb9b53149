"""The versions of named ops that this plugin brings, one name each."""

from __future__ import annotations

from pegboard_platform_cuda.kernels.activations import gelu_tanh_mul, silu_mul
from pegboard_platform_cuda.kernels.choose import choose
from pegboard_platform_cuda.kernels.experts import moe_experts
from pegboard_platform_cuda.kernels.linear import linear
from pegboard_platform_cuda.kernels.norms import add_rms_norm, rms_norm
from pegboard_platform_cuda.kernels.rotary import qk_norm_rope_store, rope, store_kv
from pegboard_platform_cuda.kernels.route import moe_gate, moe_route
from pegboard_platform_cuda.kernels.step import decode_inputs

__all__ = [
    "add_rms_norm",
    "choose",
    "decode_inputs",
    "gelu_tanh_mul",
    "linear",
    "moe_experts",
    "moe_gate",
    "moe_route",
    "qk_norm_rope_store",
    "rms_norm",
    "rope",
    "silu_mul",
    "store_kv",
]
