"""Which steps are run before the first request, so that none pays for what is made at first use.

Kernels are compiled, and libraries choose theirs, by the number of tokens of a step, by whether it
is a multiple of 16, and by which sorts of rows there are: one token, several of which nothing is
known, several after others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs
import torch

from pegboard.nn import Attention
from pegboard.runner.slots import Limits

if TYPE_CHECKING:
    from pegboard.runner.setup import OpenedDevice

__all__ = ["DummyRows", "warm_up_kernels", "warm_up_rows"]

PAST = 16
"""Tokens known before, in rows that have any."""
SMALLEST = 32
LARGEST_ODD = 4096
"""Steps of up to so many tokens are run with one token less, too."""


@attrs.frozen
class DummyRows:
    """Of each row the tokens of the step, and those known before."""

    counts: list[int]
    starts: list[int]


def warm_up_rows(limits: Limits, every_size: bool) -> Iterator[DummyRows]:
    """A prompt-like and a decode-like step; with `every_size`, mixed ones of doubling size too."""
    yield DummyRows([min(16, limits.max_tokens, limits.max_model_len)], [0])
    yield DummyRows([1], [0])
    if every_size:
        for size in _sizes(limits.max_tokens):
            yield from _mixed(size, limits)
            if size <= LARGEST_ODD:
                yield from _mixed(size - 1, limits)


@torch.inference_mode()
def warm_up_kernels(opened: OpenedDevice, model: torch.nn.Module) -> None:
    """What attention kernels build at first use, once for each sort of layer of their group."""
    known = {key: group.index for group in opened.groups for key in group.slots}
    done = set()
    for module in model.modules():
        if isinstance(module, Attention) and module.slot_key in known:
            number, layer = known[module.slot_key], module.layer
            sort = (number, layer.heads, layer.kv_heads, layer.head_size, layer.soft_cap)
            if sort not in done:
                done.add(sort)
                for kernel in opened.attention[number].warming:
                    kernel.warm_up(layer)


def _sizes(most: int) -> Iterator[int]:
    size = SMALLEST
    while size < most:
        yield size
        size *= 2
    yield most


def _mixed(tokens: int, limits: Limits) -> Iterator[DummyRows]:
    """One step of all sorts of rows if there may be so many, else one of prompts; or none."""
    longest = limits.max_model_len - PAST
    if longest > 0 and tokens > 2:
        fresh = _split((tokens - 1) // 2, limits.max_model_len)
        later = _split(tokens - 1 - sum(fresh), longest)
        if 1 + len(fresh) + len(later) <= limits.max_rows:
            starts = [PAST] + [0] * len(fresh) + [PAST] * len(later)
            yield DummyRows([1, *fresh, *later], starts)
            return
    prompts = _split(tokens, limits.max_model_len)
    if 0 < len(prompts) <= limits.max_rows:
        yield DummyRows(prompts, [0] * len(prompts))


def _split(tokens: int, longest: int) -> list[int]:
    """Into as few rows as can be, of about equal length."""
    rows = -(-tokens // longest)
    return [tokens // rows + (row < tokens % rows) for row in range(rows)] if rows else []
