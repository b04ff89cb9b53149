"""From router logits to experts, and from experts to work: which rows each expert multiplies.

A *pair* is one token with one of its experts; pair ``token * k + j`` is its j-th. Pairs are sorted
by expert on the device; each expert's pairs are then cut into blocks of rows, whose number has a
bound that the host knows, so that grids are fixed and the whole can be recorded. The order of pairs
within an expert varies from run to run; no result depends on it.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, check-untyped-defs=False
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

__all__ = ["Work", "moe_route", "most_blocks", "sort_pairs"]

_SMALL = 4096
"""Pairs up to which one program sorts them all."""
_CHUNK = 1024


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


@triton.jit(do_not_specialize=["tokens"])
def _route_kernel(
    logits, weights, ids, tokens, stride,
    EXPERTS: tl.constexpr, K: tl.constexpr, RENORMALISE: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, CHOSEN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    expert = tl.arange(0, BLOCK)
    there = row < tokens
    mask = there[:, None] & (expert < EXPERTS)[None, :]
    x = tl.load(logits + row[:, None] * stride + expert[None, :], mask=mask, other=float("-inf"))
    x = x.to(tl.float32)
    top = tl.max(x, 1)
    share = tl.exp(x - tl.where(there, top, 0.0)[:, None])
    share = share / tl.where(there, tl.sum(share, 1), 1.0)[:, None]
    # One key for the share and, among equals, the lowest expert: shares are not negative, so their
    # bits are in their order.
    key = (share.to(tl.int32, bitcast=True).to(tl.int64) << 32) | (BLOCK - 1 - expert)[None, :]
    key = tl.where(mask, key, -(1 << 62))
    place = tl.arange(0, CHOSEN)
    chosen = tl.zeros([ROWS, CHOSEN], tl.int64)
    for step in tl.static_range(K):
        best = tl.max(key, 1)
        chosen = tl.where(place[None, :] == step, best[:, None], chosen)
        key = tl.where(key == best[:, None], -(1 << 62), key)
    found = BLOCK - 1 - (chosen & 0xFFFFFFFF).to(tl.int32)
    weight = (chosen >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    used = place < K
    if RENORMALISE:
        weight = weight / tl.sum(tl.where(used[None, :], weight, 0.0), 1)[:, None]
    mask = there[:, None] & used[None, :]
    out = row[:, None] * K + place[None, :]
    tl.store(weights + out, weight, mask=mask)
    tl.store(ids + out, found, mask=mask)


def moe_route(
    logits: torch.Tensor, top_k: int, renormalise: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights ``float32 [T, k]`` and experts ``int32 [T, k]`` of ``logits [T, E]``: the `top_k`
    likeliest after a softmax in float32, the lowest expert among equals; with `renormalise` the
    weights of a token sum to 1."""
    tokens, experts = logits.shape
    weights = torch.empty((tokens, top_k), dtype=torch.float32, device=logits.device)
    ids = torch.empty((tokens, top_k), dtype=torch.int32, device=logits.device)
    if not tokens:
        return weights, ids
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    block = triton.next_power_of_2(experts)
    rows = 1 if tokens <= 1024 else max(512 // block, 1)
    _route_kernel[(triton.cdiv(tokens, rows),)](
        logits,
        weights,
        ids,
        tokens,
        logits.stride(0),
        EXPERTS=experts,
        K=top_k,
        RENORMALISE=renormalise,
        ROWS=rows,
        BLOCK=block,
        CHOSEN=triton.next_power_of_2(top_k),
        num_warps=max(rows * block // 512, 1),
    )
    return weights, ids


@triton.jit
def _cut(counts, experts, starts, ends, blocks, BM: tl.constexpr, EXPERTS: tl.constexpr,
         CHUNK: tl.constexpr, STEPS: tl.constexpr):  # fmt: skip
    """Write which expert each block belongs to, from how many pairs each has: ``[EXPERTS]``."""
    tiles = (counts + BM - 1) // BM
    tile_ends = tl.cumsum(tiles, 0)
    pair_ends = tl.cumsum(counts, 0)
    total = tl.max(tile_ends, 0)
    expert = tl.arange(0, EXPERTS)
    for step in range(0, STEPS):
        block = step * CHUNK + tl.arange(0, CHUNK)
        of = tl.sum((tile_ends[None, :] <= block[:, None]).to(tl.int32), 1)
        mine = expert[None, :] == of[:, None]
        first_tile = tl.sum(tl.where(mine, (tile_ends - tiles)[None, :], 0), 1)
        first_pair = tl.sum(tl.where(mine, (pair_ends - counts)[None, :], 0), 1)
        end = tl.sum(tl.where(mine, pair_ends[None, :], 0), 1)
        mask = block < blocks
        used = block < total
        tl.store(experts + block, tl.where(used, of, -1), mask=mask)
        tl.store(starts + block, first_pair + (block - first_tile) * BM, mask=mask)
        tl.store(ends + block, end, mask=mask)


@triton.jit(do_not_specialize=["count", "blocks"])
def _sort_kernel(
    ids, cursors, pairs, experts, starts, ends, count, blocks,
    BM: tl.constexpr, EXPERTS: tl.constexpr, PAIRS: tl.constexpr, CHUNK: tl.constexpr,
    STEPS: tl.constexpr,
):  # fmt: skip
    pair = tl.arange(0, PAIRS)
    mask = pair < count
    expert_of = tl.load(ids + pair, mask=mask, other=0)
    counts = tl.histogram(expert_of, EXPERTS, mask=mask)
    expert = tl.arange(0, EXPERTS)
    tl.store(cursors + expert, tl.cumsum(counts, 0) - counts)
    tl.debug_barrier()
    place = tl.atomic_add(cursors + expert_of, 1, mask=mask)
    tl.store(pairs + place, pair, mask=mask)
    _cut(counts, experts, starts, ends, blocks, BM, EXPERTS, CHUNK, STEPS)


@triton.jit(do_not_specialize=["count"])
def _count_kernel(ids, counts, count, EXPERTS: tl.constexpr, CHUNK: tl.constexpr):
    pair = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    mask = pair < count
    expert_of = tl.load(ids + pair, mask=mask, other=0)
    tl.atomic_add(counts + tl.arange(0, EXPERTS), tl.histogram(expert_of, EXPERTS, mask=mask))


@triton.jit(do_not_specialize=["count", "blocks"])
def _place_kernel(
    ids, counts, cursors, pairs, experts, starts, ends, count, blocks,
    BM: tl.constexpr, EXPERTS: tl.constexpr, PAIRS: tl.constexpr, CHUNK: tl.constexpr,
    STEPS: tl.constexpr,
):  # fmt: skip
    expert = tl.arange(0, EXPERTS)
    found = tl.load(counts + expert)
    if tl.program_id(0) == 0:
        _cut(found, experts, starts, ends, blocks, BM, EXPERTS, CHUNK, STEPS)
    else:
        pair = (tl.program_id(0) - 1) * PAIRS + tl.arange(0, PAIRS)
        mask = pair < count
        expert_of = tl.load(ids + pair, mask=mask, other=0)
        begin = tl.gather(tl.cumsum(found, 0) - found, expert_of, 0)
        place = begin + tl.atomic_add(cursors + expert_of, 1, mask=mask)
        tl.store(pairs + place, pair, mask=mask)


def most_blocks(pairs: int, experts: int, rows: int) -> int:
    """Most blocks of `rows` rows that `pairs` can fill, however they fall."""
    busy = min(experts, pairs)
    return busy + (pairs - busy) // rows


def sort_pairs(ids: torch.Tensor, experts: int, rows: int) -> Work:
    """Sort the pairs of ``ids int32 [T, k]``, and cut them into blocks of `rows`."""
    count = ids.numel()
    blocks = most_blocks(count, experts, rows)
    wide = triton.next_power_of_2(experts)
    scratch = torch.empty(count + 3 * blocks, dtype=torch.int32, device=ids.device)
    work = Work(*scratch.split((count, blocks, blocks, blocks)))
    chunk = min(max(4096 // wide, 1), triton.next_power_of_2(blocks))
    how = {"BM": rows, "EXPERTS": wide, "CHUNK": chunk}
    steps = triton.cdiv(triton.next_power_of_2(blocks), chunk)
    if count <= _SMALL:
        cursors = torch.empty(wide, dtype=torch.int32, device=ids.device)
        size = triton.next_power_of_2(count)
        _sort_kernel[(1,)](
            ids, cursors, *work, count, blocks, **how, PAIRS=size, STEPS=steps, num_warps=8
        )
        return work
    counts, cursors = torch.zeros((2, wide), dtype=torch.int32, device=ids.device)
    chunks = triton.cdiv(count, _CHUNK)
    _count_kernel[(chunks,)](ids, counts, count, EXPERTS=wide, CHUNK=_CHUNK, num_warps=4)
    _place_kernel[(chunks + 1,)](
        ids, counts, cursors, *work, count, blocks, **how, PAIRS=_CHUNK, STEPS=steps, num_warps=4
    )
    return work
