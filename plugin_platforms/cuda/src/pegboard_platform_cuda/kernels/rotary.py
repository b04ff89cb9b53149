"""Rotation by position and the store into the paged cache, alone and as one kernel a layer.

Floor of the joined kernel: the packed rows are read and their query and key parts written once, and
keys and values written to the cache: for 48 heads of 128 in bfloat16, 12 + 10 + 4 KiB a token, so
16,384 tokens take 97 µs at 4.4 TB/s, and a decode step no more than a launch. A cache of 8-bit
floats takes 2 of these KiB.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, check-untyped-defs=False
from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from pegboard_platform_cuda.kernels.overlap import overlap, wait

if TYPE_CHECKING:
    from pegboard.api.kv import KVTensors

Scales = tuple[torch.Tensor, torch.Tensor]
"""Of keys and of values, each float32 ``[]``."""

__all__ = ["qk_norm_rope_store", "rope", "store_kv"]

_TILE = 1024
"""Elements of a program's tile: heads by features."""


@triton.jit
def _scaled(x, scale, weight, KIND: tl.constexpr):
    """The quotient of the norm times its weight, rounded to `KIND` after each."""
    quotient = (x * scale[:, None]).to(KIND).to(tl.float32)
    return (quotient * weight).to(KIND)


@triton.jit
def _stored(x, factor, CODED: tl.constexpr, KIND: tl.constexpr):
    """`x` as the cache holds it; if `CODED`, the 8-bit float nearest to ``x * factor``. The
    hardware's conversion itself makes ±448 of what is beyond, and keeps what is not a number."""
    if CODED:
        return (x.to(tl.float32) * factor).to(tl.float8e4nv)
    else:
        return x.to(KIND)


@triton.jit
def _head_weight(query, key, of_query, feature, mask):
    """The norm's weight of each head, ``[heads, features]``."""
    first = tl.load(query + feature, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(key + feature, mask=mask, other=0.0).to(tl.float32)
    return tl.where(of_query[:, None], first[None, :], second[None, :])


@triton.jit
def _joined_kernel(
    packed, query_weight, key_weight, positions, table, pages, slots, key_scale, value_scale,
    token_stride, head_stride, table_stride, kv_stride, block_stride, place_stride, kv_head_stride,
    dim_stride, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, NORM: tl.constexpr, TILE: tl.constexpr, HALF: tl.constexpr,
    TAIL: tl.constexpr, CODED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    # A head is held as three pieces: the low and the high half of what turns, and the rest.
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * TILE + tl.arange(0, TILE)
    there = head < HEADS + 2 * KV_HEADS
    turns = head < HEADS + KV_HEADS
    pair = tl.arange(0, HALF)
    in_half = pair < R // 2
    mask = there[:, None] & in_half[None, :]
    row = packed + token * token_stride + head[:, None] * head_stride
    if EARLY:
        wait()
    # First what is needed last: the rest then hides how long it takes.
    slot = tl.load(slots + token)
    scale_of_key = 1.0
    scale_of_value = 1.0
    if CODED:
        scale_of_key = tl.load(key_scale)
        scale_of_value = tl.load(value_scale)
    low = tl.load(row + pair[None, :], mask=mask, other=0.0)
    high = tl.load(row + R // 2 + pair[None, :], mask=mask, other=0.0)
    kind = packed.dtype.element_ty
    if TAIL:
        rest = R + tl.arange(0, TAIL)
        in_rest = rest < D
        rest_mask = there[:, None] & in_rest[None, :]
        tail = tl.load(row + rest[None, :], mask=rest_mask, other=0.0)
    if NORM:
        narrow = query_weight.dtype.element_ty
        wide_low, wide_high = low.to(narrow).to(tl.float32), high.to(narrow).to(tl.float32)
        squares = tl.sum(wide_low * wide_low, 1) + tl.sum(wide_high * wide_high, 1)
        if TAIL:
            wide_tail = tail.to(narrow).to(tl.float32)
            squares += tl.sum(wide_tail * wide_tail, 1)
        scale = tl.rsqrt(squares / D + eps)
        query = head < HEADS
        weight = _head_weight(query_weight, key_weight, query, pair, in_half)
        normed = _scaled(wide_low, scale, weight, narrow).to(kind)
        low = tl.where(turns[:, None], normed, low)
        weight = _head_weight(query_weight, key_weight, query, R // 2 + pair, in_half)
        normed = _scaled(wide_high, scale, weight, narrow).to(kind)
        high = tl.where(turns[:, None], normed, high)
        if TAIL:
            weight = _head_weight(query_weight, key_weight, query, rest, in_rest)
            normed = _scaled(wide_tail, scale, weight, narrow).to(kind)
            tail = tl.where(turns[:, None], normed, tail)
    angle = table + tl.load(positions + token) * table_stride + pair
    cos = tl.load(angle, mask=in_half, other=0.0)[None, :]
    sin = tl.load(angle + R // 2, mask=in_half, other=0.0)[None, :]
    x, y = low.to(tl.float32), high.to(tl.float32)
    low = tl.where(turns[:, None], (x * cos - y * sin).to(kind), low)
    high = tl.where(turns[:, None], (y * cos + x * sin).to(kind), high)
    mask = turns[:, None] & in_half[None, :]
    tl.store(row + pair[None, :], low, mask=mask)
    tl.store(row + R // 2 + pair[None, :], high, mask=mask)
    if TAIL and NORM:
        tl.store(row + rest[None, :], tail, mask=turns[:, None] & in_rest[None, :])
    if (tl.program_id(1) + 1) * TILE <= HEADS:
        return  # queries alone
    # A row without a place has no heads to store: a bound, since some versions of the interpreter
    # make a number of a vector of truths joined with a single one.
    kept = (head >= HEADS) & (head < tl.where(slot >= 0, HEADS + 2 * KV_HEADS, 0))
    of_value = (head >= HEADS + KV_HEADS).to(tl.int64)
    kv_head = head - HEADS - of_value * KV_HEADS
    page = pages + (slot // BLOCK_SIZE) * block_stride + (slot % BLOCK_SIZE) * place_stride
    place = page + (of_value * kv_stride + kv_head * kv_head_stride)[:, None]
    stored = pages.dtype.element_ty
    factor = 1.0
    if CODED:
        reciprocal = tl.div_rn(1.0, tl.where(of_value > 0, scale_of_value, scale_of_key))
        factor = reciprocal[:, None]
    mask = kept[:, None] & in_half[None, :]
    low = _stored(low, factor, CODED, stored)
    high = _stored(high, factor, CODED, stored)
    tl.store(place + pair[None, :] * dim_stride, low, mask=mask)
    tl.store(place + (R // 2 + pair)[None, :] * dim_stride, high, mask=mask)
    if TAIL:
        mask = kept[:, None] & in_rest[None, :]
        tail = _stored(tail, factor, CODED, stored)
        tl.store(place + rest[None, :] * dim_stride, tail, mask=mask)


@triton.jit
def _rope_kernel(
    x, positions, table, token_stride, head_stride, table_stride,
    HEADS: tl.constexpr, R: tl.constexpr, TILE: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * TILE + tl.arange(0, TILE)
    pair = tl.arange(0, HALF)
    in_half = pair < R // 2
    mask = (head < HEADS)[:, None] & in_half[None, :]
    row = x + token * token_stride + head[:, None] * head_stride + pair[None, :]
    low = tl.load(row, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(row + R // 2, mask=mask, other=0.0).to(tl.float32)
    angle = table + tl.load(positions + token) * table_stride + pair
    cos = tl.load(angle, mask=in_half, other=0.0)[None, :]
    sin = tl.load(angle + R // 2, mask=in_half, other=0.0)[None, :]
    kind = x.dtype.element_ty
    tl.store(row, (low * cos - high * sin).to(kind), mask=mask)
    tl.store(row + R // 2, (high * cos + low * sin).to(kind), mask=mask)


@triton.jit
def _store_kernel(
    key, value, pages, slots, key_scale, value_scale, key_token, key_head, value_token, value_head,
    kv_stride, block_stride, place_stride, kv_head_stride, dim_stride,
    KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
    BLOCK: tl.constexpr, CODED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    of_key = 1.0
    of_value = 1.0
    if CODED:
        of_key = tl.div_rn(1.0, tl.load(key_scale))
        of_value = tl.div_rn(1.0, tl.load(value_scale))
    if slot >= 0:
        head = tl.program_id(1) * TILE + tl.arange(0, TILE)
        feature = tl.arange(0, BLOCK)
        mask = (head < KV_HEADS)[:, None] & (feature < D)[None, :]
        page = pages + (slot // BLOCK_SIZE) * block_stride + (slot % BLOCK_SIZE) * place_stride
        place = page + head.to(tl.int64)[:, None] * kv_head_stride + feature[None, :] * dim_stride
        kind = pages.dtype.element_ty
        source = key + token * key_token + head[:, None] * key_head + feature[None, :]
        new_key = tl.load(source, mask=mask, other=0.0)
        source = value + token * value_token + head[:, None] * value_head + feature[None, :]
        new_value = tl.load(source, mask=mask, other=0.0)
        tl.store(place, _stored(new_key, of_key, CODED, kind), mask=mask)
        tl.store(place + kv_stride, _stored(new_value, of_value, CODED, kind), mask=mask)


_AXES = ("kv", "block", "token", "head", "dim")


def _page_strides(kv: KVTensors) -> tuple[tuple[int, ...], int]:
    """Strides of `_AXES`, and the tokens of a block."""
    return kv.strides(*_AXES), kv.data.shape[kv.layout.axes.index("token")]


def _scales_of(kv: KVTensors, scales: Scales | None, spare: torch.Tensor) -> tuple[bool, Scales]:
    """Whether the cache holds 8-bit floats, and what these are multiples of; `spare` stands where
    nothing is asked for."""
    if kv.data.dtype != torch.float8_e4m3fn:
        return False, (spare, spare)
    if scales is None:
        one = torch.ones((), device=kv.data.device)
        return True, (one, one)
    return True, scales


def _dense(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def qk_norm_rope_store(
    packed: torch.Tensor,
    kv_heads: int,
    norms: tuple[torch.Tensor, torch.Tensor, float] | None,
    positions: torch.Tensor,
    table: torch.Tensor,
    kv: KVTensors,
    slots: torch.Tensor,
    scales: Scales | None = None,
) -> None:
    """`pegboard.nn.cache_ops.qk_norm_rope_store` in one pass over `packed`, whose features must be
    dense."""
    tokens, parts, size = packed.shape
    if not tokens:
        return
    assert packed.stride(-1) == 1, "features of packed heads are dense"
    strides, block_size = _page_strides(kv)
    rotated = table.shape[-1]
    tile = max(_TILE // triton.next_power_of_2(size), 1)
    query, key, eps = (table, table, 0.0) if norms is None else norms
    coded, (key_scale, value_scale) = _scales_of(kv, scales, table)
    _joined_kernel[(tokens, triton.cdiv(parts, tile))](
        packed,
        query,
        key,
        positions,
        table,
        kv.data,
        slots,
        key_scale,
        value_scale,
        packed.stride(0),
        packed.stride(1),
        table.stride(0),
        *strides,
        eps,
        HEADS=parts - 2 * kv_heads,
        KV_HEADS=kv_heads,
        D=size,
        R=rotated,
        BLOCK_SIZE=block_size,
        NORM=norms is not None,
        TILE=tile,
        HALF=triton.next_power_of_2(rotated // 2),
        TAIL=0 if rotated == size else triton.next_power_of_2(size - rotated),
        CODED=coded,
        num_warps=4,
        **overlap(tokens),
    )


def rope(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """`pegboard.nn.ops.rope` in place."""
    x = _dense(x)
    tokens, heads, size = x.shape
    if not tokens:
        return x
    rotated = table.shape[-1]
    tile = max(_TILE // triton.next_power_of_2(size), 1)
    _rope_kernel[(tokens, triton.cdiv(heads, tile))](
        x,
        positions,
        table,
        x.stride(0),
        x.stride(1),
        table.stride(0),
        HEADS=heads,
        R=rotated,
        TILE=tile,
        HALF=triton.next_power_of_2(rotated // 2),
        num_warps=4,
    )
    return x


def store_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    kv: KVTensors,
    slots: torch.Tensor,
    scales: Scales | None = None,
) -> None:
    """`pegboard.nn.cache_ops.store_kv`, without a look from the host."""
    tokens, heads, size = key.shape
    if not tokens:
        return
    key, value = _dense(key), _dense(value)
    strides, block_size = _page_strides(kv)
    block = triton.next_power_of_2(size)
    tile = max(_TILE // block, 1)
    coded, (key_scale, value_scale) = _scales_of(kv, scales, key)
    _store_kernel[(tokens, triton.cdiv(heads, tile))](
        key,
        value,
        kv.data,
        slots,
        key_scale,
        value_scale,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        *strides,
        KV_HEADS=heads,
        D=size,
        BLOCK_SIZE=block_size,
        TILE=tile,
        BLOCK=block,
        CODED=coded,
        num_warps=4,
    )
