"""Several programs that share the inputs of one tile of results: the last to finish adds up."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, check-untyped-defs=False
from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["arrive", "gather"]


@triton.jit
def arrive(total, place, inside, arrivals, SPLIT: tl.constexpr):
    """Leave one part at `place`; gives how many parts have yet to come."""
    tl.store(place, total, mask=inside)
    tl.debug_barrier()  # all of this tile's part is written before its arrival is
    return SPLIT - 1 - tl.atomic_add(arrivals, 1, sem="acq_rel")


@triton.jit
def gather(total, place, step, inside, arrivals, SPLIT: tl.constexpr):
    """The sum of all parts, `step` apart from `place` on, in their order; the counter is zero
    again."""
    total = tl.zeros_like(total)
    for part in range(SPLIT):
        total += tl.load(place + part * step, mask=inside, other=0.0, cache_modifier=".cg")
    tl.store(arrivals, 0)
    return total
