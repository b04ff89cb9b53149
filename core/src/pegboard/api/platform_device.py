"""A device that was looked for, and one that is opened. Part of `pegboard.api.platform`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import attrs

if TYPE_CHECKING:
    import torch

    from pegboard.api.platform_execution import Communication, Execution


__all__ = ["Device", "DeviceRuntime", "Memory", "ProbeResult"]


@attrs.frozen
class ProbeResult:
    """Answer of a probe: usable here, or why not."""

    present: bool
    reason: str
    """One sentence for the log and for selection errors, e.g. ``"no CUDA driver found"``."""


class Device(Protocol):
    """Identity and number formats."""

    def torch_device(self) -> torch.device: ...

    def dtypes(self) -> tuple[str, ...]:
        """Names of supported compute dtypes, the preferred first, e.g. ``("bfloat16",
        "float32")``."""
        ...


class Memory(Protocol):
    """Byte counts."""

    def total_bytes(self) -> int:
        """Memory that this process may use on the device."""
        ...

    def free_bytes(self) -> int:
        """Memory free now."""
        ...

    def cache_limit(self) -> int | None:
        """Most bytes that a KV cache should take unless the user asks for more; None for no such
        limit."""
        ...

    def peak_bytes(self, work: Callable[[], Any]) -> int | None:
        """Most bytes that ``work()``, which it calls, takes at once beyond what was taken before.

        None, without calling it, where the device has no such meter: the core then counts the
        tensors that it sees.
        """
        ...


class DeviceRuntime(Protocol):
    """One opened device, held by one worker."""

    device: Device
    memory: Memory
    execution: Execution

    def communicate(self, rank: int, world: int, address: str) -> Communication:
        """Join `world` ranks, of which this is number `rank`; returns when all have come.

        `address` is the path of a file that all ranks can reach and that nobody else uses; it need
        not exist. Called at most once, before memory is asked about: ranks that share a memory
        share it out from then on. Raises `UnsupportedError` where the platform serves one rank.
        """
        ...

    def facts(self) -> dict[str, Any]:
        """Name, cores, capabilities: plain values for the banner, the bug report and op
        conditions."""
        ...
