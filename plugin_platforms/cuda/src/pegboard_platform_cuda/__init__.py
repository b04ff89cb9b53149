"""The CUDA platform for Pegboard, with versions of the named ops in Triton."""

from __future__ import annotations

from pegboard.api.hooks import hookimpl
from pegboard.api.ops import OpVersion
from pegboard.api.platform import Platform

PEGBOARD_API = {"ops": 0, "platform": 0}

_BY_ROW = (
    "add_rms_norm",
    "choose",
    "decode_inputs",
    "gelu_tanh_mul",
    "moe_route",
    "qk_norm_rope_store",
    "rms_norm",
    "rope",
    "silu_mul",
    "store_kv",
)
"""Ops whose versions compute a row without regard to its mates."""


@hookimpl
def pegboard_platforms() -> tuple[Platform, ...]:
    """NVIDIA GPUs, preferred to the host's processors."""
    return (
        Platform(
            name="cuda",
            probe="pegboard_platform_cuda.runtime:probe",
            runtime="pegboard_platform_cuda.runtime:CudaRuntime",
            priority=10,
        ),
    )


@hookimpl
def pegboard_ops() -> tuple[OpVersion, ...]:
    """A version for each op that is worth a kernel."""
    return tuple(_version(op) for op in (*_BY_ROW, "linear", "moe_experts", "moe_gate"))


def _version(op: str) -> OpVersion:
    return OpVersion(
        name=f"cuda.{op}",
        op=op,
        function=f"pegboard_platform_cuda.ops:{op}",
        platforms=("cuda",),
        batch_invariant=op in _BY_ROW,
    )
