"""Ops around the paged cache: storing keys and values, alone and joined with what precedes it."""

from __future__ import annotations

import torch

from pegboard.api.kv import KVTensors

__all__ = ["LARGEST_FP8", "Scales", "paged_view", "qk_norm_rope_store", "store_kv"]

LARGEST_FP8 = 448.0
"""The largest number of ``float8_e4m3fn``."""

Scales = tuple[torch.Tensor, torch.Tensor]
"""Of keys and of values, each float32 ``[]``."""


def paged_view(kv: KVTensors) -> torch.Tensor:
    """A slot's keys and values as a view ``[2, blocks, block size, kv heads, dim]``, whatever the
    order of axes in memory."""
    axes = kv.layout.axes
    return kv.data.permute(*(axes.index(axis) for axis in ("kv", "block", "token", "head", "dim")))


def store_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    kv: KVTensors,
    slots: torch.Tensor,
    scales: Scales | None = None,
) -> None:
    """Write ``key`` and ``value [T, kv heads, dim]`` to the places ``slots int64 [T]`` of a cache.

    A place is ``block * block size + offset``, -1 for nowhere. Values take the dtype of the cache.
    Those of a cache of 8-bit floats are multiplied with the reciprocals of `scales` first (None: of
    1), in float32, and what is beyond ±448 then becomes that; other caches hold them as they are,
    with scales or without.
    """
    pages = paged_view(kv)
    kept = slots >= 0
    block_size = pages.shape[2]
    blocks, offsets = slots[kept] // block_size, slots[kept] % block_size
    for side, new in enumerate((key, value)):
        scale = None if scales is None else scales[side]
        pages[side, blocks, offsets] = _rounded(new[kept], pages.dtype, scale)


def _rounded(values: torch.Tensor, dtype: torch.dtype, scale: torch.Tensor | None) -> torch.Tensor:
    """`values` as a cache of this dtype holds them."""
    if dtype != torch.float8_e4m3fn:
        return values.to(dtype)
    wide = values.float() if scale is None else values.float() * scale.reciprocal()
    return wide.clamp(-LARGEST_FP8, LARGEST_FP8).to(dtype)


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
    """Norm and rotate queries and keys in place, then store keys and values.

    ``packed [T, heads + 2 kv heads, D]`` = query | key | value. `norms` are the weights ``[D]`` of
    query and key heads, and epsilon: each head passes `rms_norm`; float32 weights mean that the
    result is rounded once, after the product with them. Rotation is `rope` with ``positions int64
    [T]`` and ``table float32 [positions, R]``; `kv`, `slots` and
    `scales` are those of `store_kv`.
    """
    from pegboard.nn.ops import rms_norm, rope

    heads = packed.shape[1] - 2 * kv_heads
    query, key, value = packed.split((heads, kv_heads, kv_heads), 1)
    for part, weight in zip((query, key), (norms or ())[:2], strict=False):
        assert norms is not None
        given = part.to(weight.dtype)
        part.copy_(rms_norm(given, weight, norms[2]))
    turned = packed[:, : heads + kv_heads]
    turned.copy_(rope(turned.clone(), positions, table))
    store_kv(key, value, kv, slots, scales)
