"""The null platform: host memory, invented figures, no device. It lets the whole engine run
anywhere.

It is never chosen by itself where another platform is usable; ask for it with ``platform="null"``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pegboard.api.platform import Communication, Immediate, ProbeResult
from pegboard.errors import UnsupportedError
from pegboard.testing.platforms import NULL_PLATFORM

if TYPE_CHECKING:
    import torch

__all__ = ["NULL_PLATFORM", "NullRuntime", "probe"]


def probe() -> ProbeResult:
    """Always usable."""
    return ProbeResult(present=True, reason="needs no device")


class NullRuntime:
    """A device of 1 GiB on the host."""

    TOTAL_BYTES = 1 << 30

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self.device = self
        self.memory = self
        self.execution = Immediate()

    def torch_device(self) -> torch.device:
        import torch

        return torch.device("cpu")

    def dtypes(self) -> tuple[str, ...]:
        return ("float32", "bfloat16", "float16")

    def total_bytes(self) -> int:
        return self.TOTAL_BYTES

    def free_bytes(self) -> int:
        return self.TOTAL_BYTES

    def cache_limit(self) -> int | None:
        return self.TOTAL_BYTES // 16

    def peak_bytes(self, work: Callable[[], Any]) -> int | None:
        return None

    def communicate(self, rank: int, world: int, address: str) -> Communication:
        """Refused: there is no device that another rank could have."""
        raise UnsupportedError(f"the null platform serves one rank, not {world}")

    def facts(self) -> dict[str, Any]:
        return {"platform": "null", "device": "host memory"}
