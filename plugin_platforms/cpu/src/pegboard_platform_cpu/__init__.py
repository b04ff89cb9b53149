"""The CPU platform for Pegboard, with the ops that torch can do better than by their definition."""

from __future__ import annotations

from pegboard.api.hooks import hookimpl
from pegboard.api.ops import OpVersion
from pegboard.api.platform import Platform

PEGBOARD_API = {"ops": 0, "platform": 0}


@hookimpl
def pegboard_platforms() -> tuple[Platform, ...]:
    """The host's processors."""
    return (
        Platform(
            name="cpu",
            probe="pegboard_platform_cpu.runtime:probe",
            runtime="pegboard_platform_cpu.runtime:CpuRuntime",
        ),
    )


@hookimpl
def pegboard_ops() -> tuple[OpVersion, ...]:
    """Versions with fewer passes over memory; each computes a row without regard to its mates."""
    return tuple(
        OpVersion(
            name=f"cpu.{op}",
            op=op,
            function=f"pegboard_platform_cpu.ops:{op}",
            platforms=("cpu",),
            batch_invariant=True,
        )
        for op in ("add_rms_norm", "rms_norm", "rope", "silu_mul")
    )
