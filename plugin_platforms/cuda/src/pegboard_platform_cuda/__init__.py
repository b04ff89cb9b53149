"""The CUDA platform for Pegboard."""

from __future__ import annotations

from pegboard.api.hooks import hookimpl
from pegboard.api.platform import Platform

PEGBOARD_API = {"platform": 0}


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
