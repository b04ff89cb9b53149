"""Counter-based random numbers: a draw is a pure function of what it is for.

Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011)
maps a 128-bit counter and a 64-bit key to 128 random bits. Here

* the key is the request's 64-bit seed,
* the counter words are the position, the child index, the stream, and 0,

so that different (seed, child, position, stream) never share an input. The arithmetic is on
integers only and gives the same bits with Python integers, numpy arrays and tensors of any device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

__all__ = ["STREAM_SAMPLE", "device_uniforms", "philox4x32", "uniforms"]

STREAM_SAMPLE = 0
"""Stream of the one draw that chooses a sampled token."""

_MASK32 = 0xFFFFFFFF
_MASK16 = 0xFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_FEW = 16
"""Up to so many rows, plain integers are quicker than arrays."""

Words = tuple[Any, Any, Any, Any]
"""Four 32-bit words, each an `int`, a uint64 array or an int64 tensor."""

Column = np.ndarray[Any, np.dtype[np.int64]]


def philox4x32(counter: Words, key: tuple[Any, Any]) -> Words:
    """Ten rounds of Philox; words are held in something wider, see `Words`."""
    product = _narrow_product if isinstance(counter[0], torch.Tensor) else _wide_product
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for step in range(_ROUNDS):
        if step:
            k0 = (k0 + _WEYL[0]) & _MASK32
            k1 = (k1 + _WEYL[1]) & _MASK32
        high0, low0 = product(c0, _MULTIPLIERS[0])
        high1, low1 = product(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
    return c0, c1, c2, c3


def _wide_product(word: Any, factor: int) -> tuple[Any, Any]:
    """High and low word of the product, which fits 64 unsigned bits."""
    product = word * factor
    return product >> 32, product & _MASK32


def _narrow_product(word: Any, factor: int) -> tuple[Any, Any]:
    """The same by halves of the factor: nothing leaves the range of a signed 64-bit integer."""
    below = word * (factor & _MASK16)
    above = word * (factor >> 16) + (below >> 16)
    return above >> 16, ((above & _MASK16) << 16) | (below & _MASK16)


def uniforms(
    seeds: Column, children: Column, positions: Column, stream: int = STREAM_SAMPLE
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """One number per row, float64 ``[R]``, strictly between 0 and 1, from int64 columns ``[R]``.

    ``(n + 1/2) / 2^52`` with n the high 52 bits of the first two words: exact in float64, never 0,
    never 1.
    """
    if len(seeds) <= _FEW:
        rows = zip(seeds.tolist(), children.tolist(), positions.tolist(), strict=True)
        bits = np.array([_bits52(*row, stream) for row in rows], dtype=np.float64)
    else:
        key, child, position = (c.astype(np.uint64) for c in (seeds, children, positions))
        bits = _bits52(key, child, position, stream).astype(np.float64)
    return (bits + 0.5) * 2.0**-52


def device_uniforms(
    seeds: torch.Tensor,
    children: torch.Tensor,
    positions: torch.Tensor,
    stream: int = STREAM_SAMPLE,
) -> torch.Tensor:
    """The same numbers from int64 tensors, computed where they live."""
    bits: torch.Tensor = _bits52(seeds, children, positions, stream)
    return (bits.double() + 0.5) * 2.0**-52


def _bits52(seed: Any, child: Any, position: Any, stream: int) -> Any:
    zero = seed & 0
    counter = (position & _MASK32, child & _MASK32, zero + stream, zero)
    first, second, _, _ = philox4x32(counter, (seed & _MASK32, (seed >> 32) & _MASK32))
    return (first << 20) | (second >> 12)
