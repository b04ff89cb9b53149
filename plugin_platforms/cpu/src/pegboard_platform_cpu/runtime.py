"""The host as a device."""

from __future__ import annotations

import importlib.util
import math
import os
import platform
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psutil

from pegboard.api.platform import Communication, Immediate, ProbeResult
from pegboard.errors import ConfigError
from pegboard_platform_cpu.cgroup import cpu_quota, memory_limit

if TYPE_CHECKING:
    import torch

__all__ = ["CpuDevice", "CpuMemory", "CpuRuntime", "probe", "usable_cores"]

CACHE_LIMIT = 4 << 30
"""The host has other uses for its memory than our cache: more only if the user asks for it."""

_ISA = ("avx2", "avx512_f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "avx_vnni")


def probe() -> ProbeResult:
    """Usable wherever torch is installed."""
    if importlib.util.find_spec("torch") is None:
        return ProbeResult(present=False, reason="torch is not installed")
    return ProbeResult(present=True, reason=f"{platform.machine()} with {usable_cores()} cores")


def usable_cores() -> int:
    """Processors that this process may run on, a container's quota counted, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = cpu_quota()
    return cores if quota is None else max(min(cores, math.ceil(quota)), 1)


class CpuDevice:
    """Identity and number formats."""

    def torch_device(self) -> torch.device:
        import torch

        return torch.device("cpu")

    def dtypes(self) -> tuple[str, ...]:
        """bfloat16 is preferred where the processor multiplies it; it is right everywhere."""
        if native_bfloat16():
            return ("bfloat16", "float32", "float16")
        return ("float32", "bfloat16", "float16")


class CpuMemory:
    """The host's memory, as far as this process's control group lets it be used: one of `ranks`
    equal shares."""

    def __init__(self, ranks: int = 1) -> None:
        self._ranks = ranks

    def total_bytes(self) -> int:
        host = int(psutil.virtual_memory().total)
        limit = memory_limit()
        return (host if limit is None else min(host, limit.limit)) // self._ranks

    def free_bytes(self) -> int:
        host = int(psutil.virtual_memory().available)
        limit = memory_limit()
        free = host if limit is None else min(host, max(limit.limit - limit.used, 0))
        return free // self._ranks

    def cache_limit(self) -> int | None:
        return min(CACHE_LIMIT // self._ranks, self.total_bytes() // 4)

    def peak_bytes(self, work: Callable[[], Any]) -> int | None:
        return None


class CpuRuntime:
    """The host, opened. There is one, whatever the index: ranks share it."""

    def __init__(self, index: int = 0) -> None:
        if index < 0:
            raise ConfigError(f"device index {index} is not allowed: at least 0")
        self.device = CpuDevice()
        self.memory = CpuMemory()
        self.execution = Immediate()
        _fit_threads()

    def communicate(self, rank: int, world: int, address: str) -> Communication:
        """Join the other ranks on this host; memory and cores are shared out from now on."""
        from pegboard_platform_cpu.communication import GlooCommunication

        self.memory = CpuMemory(world)
        _fit_threads(world)
        return GlooCommunication(rank, world, address)

    def facts(self) -> dict[str, Any]:
        """Plain values; `isa` names the extensions that number formats look for."""
        import torch

        return {
            "platform": "cpu",
            "device": str(capabilities().get("cpu_name") or platform.processor()),
            "machine": platform.machine(),
            "cores": usable_cores(),
            "threads": torch.get_num_threads(),
            "capability": torch.backends.cpu.get_cpu_capability(),
            "isa": isa(),
            "native_bfloat16": native_bfloat16(),
            "onednn": torch.backends.mkldnn.is_available(),
            "total_bytes": self.memory.total_bytes(),
        }


def capabilities() -> dict[str, Any]:
    """What torch found out about the processor, empty where it has no such function."""
    import torch

    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return dict(found)


def isa() -> tuple[str, ...]:
    """Instruction-set extensions that matter to number formats."""
    found = capabilities()
    return tuple(name for name in _ISA if found.get(name))


def native_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 itself."""
    found = capabilities()
    return any(found.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))


def _fit_threads(ranks: int = 1) -> None:
    """Use no more threads than this rank's share of the processors; an explicit
    ``OMP_NUM_THREADS`` is left alone.

    Torch counts the host's, and in a container with a quota they stand in each other's way.
    """
    import torch

    cores = max(usable_cores() // ranks, 1)
    if "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > cores:
        torch.set_num_threads(cores)
