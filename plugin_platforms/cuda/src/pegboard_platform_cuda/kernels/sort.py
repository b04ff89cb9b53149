"""From experts to work: which rows each expert multiplies.

A *pair* is one token with one of its experts; pair ``token * k + j`` is its j-th. Pairs are sorted
by expert on the device; each expert's pairs are then cut into blocks of rows, whose number has a
bound that the host knows, so that grids are fixed and the whole can be recorded.

Few pairs take one launch: a program per expert looks through all of them, so that none waits for
another, and keeps their order. Many take two: chunks of pairs are counted, then placed. There the
order of pairs within a chunk and expert varies from run to run; no result depends on it. Floor of
either: its launches, at 1.1 µs each, and reading the ids from L2; expected are 4 µs for up to 2,048
pairs over 128 experts and 10 µs for 131,072.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, check-untyped-defs=False
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from pegboard_platform_cuda import tiles

__all__ = ["Work", "most_blocks", "sort_pairs"]

_CHUNK = 1024
"""Pairs that a program places, where there are many."""


class Work(NamedTuple):
    """Pairs by expert, cut into blocks."""

    pairs: torch.Tensor
    """int32 [pairs], sorted by expert."""
    experts: torch.Tensor
    """int32 [blocks]: whose block it is, -1 for none."""
    starts: torch.Tensor
    """int32 [blocks]: place of its first pair in `pairs`."""
    ends: torch.Tensor
    """int32 [blocks]: place behind the expert's last pair."""


@triton.jit(do_not_specialize=["count", "blocks"])
def _sort_kernel(
    ids, pairs, experts, starts, ends, count, blocks,
    BM: tl.constexpr, EXPERTS: tl.constexpr, PAIRS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Pairs and blocks of one expert."""
    mine = tl.program_id(0)
    pair = tl.arange(0, PAIRS)
    there = pair < count
    expert_of = tl.load(ids + pair, mask=there, other=0)
    counts = tl.histogram(expert_of, EXPERTS, mask=there)
    tiles = (counts + BM - 1) // BM
    expert = tl.arange(0, EXPERTS)
    number = tl.sum(tl.where(expert == mine, counts, 0), 0)
    if number > 0:
        begin = tl.sum(tl.where(expert < mine, counts, 0), 0)
        first = tl.sum(tl.where(expert < mine, tiles, 0), 0)
        here = there & (expert_of == mine)
        place = begin + tl.cumsum(here.to(tl.int32), 0) - 1
        tl.store(pairs + place, pair, mask=here)
        slot = tl.arange(0, SLOTS)
        used = slot * BM < number
        tl.store(experts + first + slot, tl.full([SLOTS], 0, tl.int32) + mine, mask=used)
        tl.store(starts + first + slot, begin + slot * BM, mask=used)
        tl.store(ends + first + slot, tl.full([SLOTS], 0, tl.int32) + begin + number, mask=used)
    if mine == 0:
        rest = tl.sum(tiles, 0) + expert  # at most one block per expert is left over
        tl.store(experts + rest, tl.full([EXPERTS], -1, tl.int32), mask=rest < blocks)


@triton.jit(do_not_specialize=["count"])
def _count_kernel(ids, counts, count, EXPERTS: tl.constexpr, CHUNK: tl.constexpr):
    pair = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    mask = pair < count
    expert_of = tl.load(ids + pair, mask=mask, other=0)
    place = tl.program_id(0) * EXPERTS + tl.arange(0, EXPERTS)
    tl.store(counts + place, tl.histogram(expert_of, EXPERTS, mask=mask))


@triton.jit(do_not_specialize=["count", "blocks", "chunks"])
def _place_kernel(
    ids, counts, cursors, pairs, experts, starts, ends, count, blocks, chunks,
    BM: tl.constexpr, EXPERTS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Pairs of one chunk, and of each expert every so many-th block."""
    chunk = tl.program_id(0)
    expert = tl.arange(0, EXPERTS)
    total = tl.zeros([EXPERTS], tl.int32)
    before = tl.zeros([EXPERTS], tl.int32)
    for start in range(0, chunks, ROWS):
        row = start + tl.arange(0, ROWS)
        at = counts + row[:, None] * EXPERTS + expert[None, :]
        found = tl.load(at, mask=(row < chunks)[:, None], other=0)
        total += tl.sum(found, 0)
        before += tl.sum(tl.where((row < chunk)[:, None], found, 0), 0)
    begin = tl.cumsum(total, 0) - total
    mine = cursors + chunk * EXPERTS
    tl.store(mine + expert, begin + before)
    tl.debug_barrier()
    pair = chunk * CHUNK + tl.arange(0, CHUNK)
    mask = pair < count
    expert_of = tl.load(ids + pair, mask=mask, other=0)
    place = tl.atomic_add(mine + expert_of, 1, mask=mask)
    tl.store(pairs + place, pair, mask=mask)
    tiles = (total + BM - 1) // BM
    first = tl.cumsum(tiles, 0) - tiles
    for slot in range(chunk, tl.max(tiles, 0), chunks):
        used = slot < tiles
        tl.store(experts + first + slot, expert, mask=used)
        tl.store(starts + first + slot, begin + slot * BM, mask=used)
        tl.store(ends + first + slot, begin + total, mask=used)
    if chunk == 0:
        rest = tl.sum(tiles, 0) + expert  # at most one block per expert is left over
        tl.store(experts + rest, tl.full([EXPERTS], -1, tl.int32), mask=rest < blocks)


def most_blocks(pairs: int, experts: int, rows: int) -> int:
    """Most blocks of `rows` rows that `pairs` can fill, however they fall."""
    busy = min(experts, pairs)
    return busy + (pairs - busy) // rows


def sort_pairs(ids: torch.Tensor, experts: int, rows: int) -> Work:
    """Sort the pairs of ``ids int32 [T, k]``, contiguous, and cut them into blocks of `rows`, a
    power of two."""
    count = ids.numel()
    blocks = most_blocks(count, experts, rows)
    wide = triton.next_power_of_2(experts)
    work = _room(count, blocks, ids.device)
    if count <= tiles.SORT_PAIRS:
        size = triton.next_power_of_2(count)
        _sort_kernel[(experts,)](
            ids,
            *work,
            count,
            blocks,
            BM=rows,
            EXPERTS=wide,
            PAIRS=size,
            SLOTS=max(size // rows, 1),
            num_warps=4 if size <= 1024 else 8,
        )
        return work
    chunks = triton.cdiv(count, _CHUNK)
    counts, cursors = torch.empty((2, chunks, wide), dtype=torch.int32, device=ids.device)
    _count_kernel[(chunks,)](ids, counts, count, EXPERTS=wide, CHUNK=_CHUNK, num_warps=4)
    _place_kernel[(chunks,)](
        ids,
        counts,
        cursors,
        *work,
        count,
        blocks,
        chunks,
        BM=rows,
        EXPERTS=wide,
        CHUNK=_CHUNK,
        ROWS=max(2048 // wide, 1),
        num_warps=4,
    )
    return work


def _room(count: int, blocks: int, device: torch.device) -> Work:
    """Memory for all of it. Each part begins at a multiple of 16 bytes: kernels are compiled anew
    for an address that is none."""
    sizes = (count, blocks, blocks, blocks)
    steps = [-(-size // 4) * 4 for size in sizes]
    parts = torch.empty(sum(steps), dtype=torch.int32, device=device).split(steps)
    return Work(*(part[:size] for part, size in zip(parts, sizes, strict=True)))
