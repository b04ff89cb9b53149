"""Random weights: a function of name, place and nothing else, made where they are wanted."""

from __future__ import annotations

import zlib
from math import prod

import torch

__all__ = ["DUMMY_RANGE", "DUMMY_SCHEME", "random_weight"]

DUMMY_RANGE = 1e-3
_SEED = 1234
DUMMY_SCHEME = f"name and place by xorshift, seed {_SEED}, within {DUMMY_RANGE}"
"""What decides the values beside the names and shapes of a model's weights: to be changed with
them."""
_TILES = {"cpu": 1 << 15}
_TILE = 1 << 24
"""Values made at once, each from one int64: what a CPU's cache holds, and what keeps a GPU busy."""
_WORD = 0xFFFFFFFF


def random_weight(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Uniform numbers of `shape` within ±`DUMMY_RANGE`.

    Value i is a hash of `name` and i in 32-bit integers, scaled in float32, so every device gives
    the same bits, and billions of values take a GPU less than a second.
    """
    flat = torch.empty(prod(shape), dtype=dtype, device=device)
    key = _SEED + zlib.crc32(name.encode())
    step = _TILES.get(device.type, _TILE)
    for first in range(0, len(flat), step):
        tile = flat[first : first + step]
        words = torch.arange(first, first + len(tile), dtype=torch.int64, device=device)
        # An own odd stride for each name: the sequences of two names are no shifted copies.
        _mix(words.mul_(2 * (key & 0xFFFF) + 1).add_(key))
        unit = words.bitwise_right_shift_(8).float()  # 24 bits, which float32 holds exactly
        tile.copy_(unit.mul_(2 * DUMMY_RANGE / 2**24).sub_(DUMMY_RANGE))
    return flat.view(shape)


def _mix(words: torch.Tensor) -> None:
    """Hash 32-bit words in place: xorshifts and multiplications by odd numbers, a bijection."""
    words.bitwise_and_(_WORD)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x046CA68B)):
        words.bitwise_xor_(words.bitwise_right_shift(shift))
        words.mul_(factor).bitwise_and_(_WORD)
    words.bitwise_xor_(words.bitwise_right_shift(16))
