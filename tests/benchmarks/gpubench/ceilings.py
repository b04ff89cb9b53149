"""What the card reaches, measured in the run that the figures come from."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import attrs

GEMM = (8192, 28672, 4096)
"""Rows, columns and inner size of the product."""
_READ_BYTES = 4 << 30
_ROUNDS = 5


@attrs.frozen
class Ceilings:
    """Limits of a card."""

    read: float
    """TB/s of a reduction."""
    copy: float
    """TB/s, reads and writes together."""
    gemm: float
    """TFLOP/s in bfloat16."""

    def __str__(self) -> str:
        return (
            f"read {self.read:.2f} TB/s, copy {self.copy:.2f} TB/s, bf16 product "
            f"{self.gemm:.0f} TFLOP/s"
        )


def measure_ceilings(*, small: bool = False) -> Ceilings:
    """The best of a few rounds each; about a second on a GPU, and `small` on anything else."""
    import torch

    gpu = torch.cuda.is_available() and not small
    device = torch.device("cuda" if gpu else "cpu")
    read, copy = _bandwidth(_READ_BYTES // 2 if gpu else 1 << 20, device)
    found = Ceilings(read, copy, _gemm(GEMM if gpu else (64, 64, 64), device))
    if gpu:
        torch.cuda.empty_cache()
    return found


def _bandwidth(count: int, device: Any) -> tuple[float, float]:
    """Of reading, by the fastest of some reductions over `count` bfloat16 numbers, and of copying
    them."""
    import torch

    source = torch.empty(count, dtype=torch.bfloat16, device=device).uniform_(-1, 1)
    words, target = source.view(torch.int32), torch.empty_like(source)
    reductions: tuple[Callable[[], Any], ...] = (source.sum, source.amax, words.amax)
    read = min(_best(reduction, device) for reduction in reductions)
    copy = _best(lambda: target.copy_(source), device)
    return 2 * count / read / 1e12, 4 * count / copy / 1e12


def _gemm(shape: tuple[int, int, int], device: Any) -> float:
    import torch

    rows, columns, inner = shape
    left = torch.empty(rows, inner, dtype=torch.bfloat16, device=device).uniform_(-1, 1)
    right = torch.empty(columns, inner, dtype=torch.bfloat16, device=device).uniform_(-1, 1)
    seconds = _best(lambda: torch.nn.functional.linear(left, right), device)
    return 2 * rows * columns * inner / seconds / 1e12


def _best(work: Callable[[], Any], device: Any) -> float:
    """Least seconds of one call; on a GPU of several calls in a row, between events."""
    import torch

    work()
    if device.type == "cpu":
        return min(_seconds(work) for _ in range(_ROUNDS))
    times: list[float] = []
    for _ in range(_ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(_ROUNDS):
            work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / _ROUNDS)
    return min(times)


def _seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return max(time.perf_counter() - begin, 1e-9)
