"""Ops around the paged cache: storing keys and values, alone and joined with what precedes it."""

from __future__ import annotations

import torch

from pegboard.api.kv import KVTensors

__all__ = ["paged_view", "qk_norm_rope_store", "store_kv"]


def paged_view(kv: KVTensors) -> torch.Tensor:
    """A slot's keys and values as a view ``[2, blocks, block size, kv heads, dim]``, whatever the
    order of axes in memory."""
    axes = kv.layout.axes
    return kv.data.permute(*(axes.index(axis) for axis in ("kv", "block", "token", "head", "dim")))


def store_kv(key: torch.Tensor, value: torch.Tensor, kv: KVTensors, slots: torch.Tensor) -> None:
    """Write ``key`` and ``value [T, kv heads, dim]`` to the places ``slots int64 [T]`` of a cache.

    A place is ``block * block size + offset``, -1 for nowhere. Values take the dtype of the cache.
    """
    pages = paged_view(kv)
    kept = slots >= 0
    block_size = pages.shape[2]
    blocks, offsets = slots[kept] // block_size, slots[kept] % block_size
    pages[0, blocks, offsets] = key[kept].to(pages.dtype)
    pages[1, blocks, offsets] = value[kept].to(pages.dtype)


def qk_norm_rope_store(
    packed: torch.Tensor,
    kv_heads: int,
    norms: tuple[torch.Tensor, torch.Tensor, float] | None,
    positions: torch.Tensor,
    table: torch.Tensor,
    kv: KVTensors,
    slots: torch.Tensor,
) -> None:
    """Norm and rotate queries and keys in place, then store keys and values.

    ``packed [T, heads + 2 kv heads, D]`` = query | key | value. `norms` are the weights ``[D]`` of
    query and key heads, and epsilon: each head passes `rms_norm`; float32 weights mean that the
    result is rounded once, after the product with them. Rotation is `rope` with ``positions int64
    [T]`` and ``table float32 [positions, R]``; `kv` and `slots` are those of `store_kv`.
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
    store_kv(key, value, kv, slots)
