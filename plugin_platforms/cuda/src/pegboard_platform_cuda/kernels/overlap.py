"""Launching a kernel while the one before it still runs (programmatic dependent launch).

A kernel that takes part lets its successor start at once, and waits until its predecessor is done,
with all its writes visible, before it touches anything that another kernel may write. What comes
before the wait reads weights only. Since every kernel that takes part waits, one that is done means
that all before it are done.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, check-untyped-defs=False
from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from pegboard_platform_cuda import tiles

__all__ = ["fetch", "overlap", "wait"]


@triton.jit
def wait():
    """Let the next kernel start, and wait for the one before."""
    gdc_launch_dependents()
    gdc_wait()


@triton.jit
def fetch(places):
    """Bring the 128 bytes at each of ``places`` into the L2 cache."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [places], tl.int32, False, 1
    )


def overlap(rows: int) -> dict[str, bool]:
    """Options of the launch of a kernel that may take part, for a step of so many rows."""
    if rows <= tiles.OVERLAP_ROWS and _capable():
        return {"EARLY": True, "launch_pdl": True}
    return {"EARLY": False}


@functools.cache
def _capable() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
