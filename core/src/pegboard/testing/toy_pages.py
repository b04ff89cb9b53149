"""The toy model over real storage: ids in the tensors that a connector saves and loads.

Every number of every page stands for the token, the layer and the side (key or value) that it
belongs to, and all groups share the same memory, so that a connector that forgets a layer, swaps
two blocks or writes to the wrong place is found out in the next step.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np

from pegboard.api.kv import (
    ChunkedLocalSpec,
    KVCacheConfig,
    KVLayout,
    KVSpec,
    KVTensors,
    LatentSpec,
    RecurrentSpec,
    SlidingWindowSpec,
)
from pegboard.api.step import BlockCopy
from pegboard.runner.storage import copy_blocks
from pegboard.testing.toy_cache import ToyRow

__all__ = ["PageCache"]

_PAGED = KVLayout("toy", ("block", "kv", "token", "head", "dim"))
_LATENT = KVLayout("toy-latent", ("block", "token", "dim"))
Floats = np.ndarray[Any, np.dtype[np.float32]]
_PLANE = 128
"""Numbers per layer, more than there are ids."""
GARBAGE = -1.0
"""What no row stores."""


class PageCache:
    """Storage of all groups, and what rows must find in it."""

    def __init__(self, cache: KVCacheConfig, storage: Mapping[str, KVTensors]) -> None:
        self.storage = storage
        self._groups = [(group, [storage[key] for key in group.slots]) for group in cache.groups]
        self._views = [
            [] if isinstance(group.spec, RecurrentSpec) else [_by_token(s) for s in slots]
            for group, slots in self._groups
        ]

    @classmethod
    def layouts(cls, cache: KVCacheConfig) -> list[KVLayout]:
        """Of the groups."""
        return [_LATENT if isinstance(g.spec, LatentSpec) else _PAGED for g in cache.groups]

    def block_size(self, group: int) -> int:
        return self._groups[group][0].block_size

    def holds_state(self, group: int) -> bool:
        return isinstance(self._groups[group][0].spec, RecurrentSpec)

    def copy(self, copy: BlockCopy) -> None:
        assert 0 not in (copy.source, copy.target), "the null block is copied"
        copy_blocks([copy], self.storage.values())

    def recall(self, row: ToyRow, start: int) -> None:
        """Check the recurrent states that a step begins from."""
        for group, slots in self._groups:
            if start and isinstance(group.spec, RecurrentSpec):
                block = row.tables[group.index][(start - 1) // group.block_size]
                for layer, tensors in enumerate(slots):
                    _check_state(tensors, block, row.ids[:start], layer)

    def written(self, row: ToyRow, start: int, stop: int) -> set[int]:
        """Blocks that `write` of the tokens ``start`` to ``stop`` changes."""
        changed: set[int] = set()
        for group, _ in self._groups:
            table, size = row.tables[group.index], group.block_size
            if isinstance(group.spec, RecurrentSpec):
                ends = _lengths(group.spec, start, stop, size)
                changed |= {table[(length - 1) // size] for length in ends}
            else:
                changed |= set(table[start // size : (stop - 1) // size + 1])
        return changed - {0}

    def write(self, row: ToyRow, start: int, stop: int) -> None:
        """Store tokens ``start`` to ``stop``."""
        assert stop <= len(row.ids), f"tokens up to {stop} planned, {len(row.ids)} known"
        for group, slots in self._groups:
            table, size = row.tables[group.index], group.block_size
            if isinstance(group.spec, RecurrentSpec):
                for length in _lengths(group.spec, start, stop, size):
                    for layer, tensors in enumerate(slots):
                        _write_state(tensors, table[(length - 1) // size], row.ids[:length], layer)
                continue
            blocks, places = _places(table, start, stop, size)
            assert blocks.all(), "the null block is written"
            for layer, view in enumerate(self._views[group.index]):
                view[blocks, places] = _codes(row.ids[start:stop], layer, view)

    def verify(self, slot: int, row: ToyRow, start: int, stop: int) -> None:
        """Everything that these tokens attend to is what the row's own tokens would have stored."""
        for group, _ in self._groups:
            if isinstance(group.spec, RecurrentSpec):
                continue
            first = _first(group.spec, start)
            blocks, places = _places(row.tables[group.index], first, stop, group.block_size)
            for layer, view in enumerate(self._views[group.index]):
                wrong = view[blocks, places] != _codes(row.ids[first:stop], layer, view)
                assert not wrong.any(), (
                    f"slot {slot}, group {group.index}, layer {layer}: wrong content from "
                    f"token {first + int(wrong.reshape(len(blocks), -1).any(1).argmax())} on"
                )

    def spoil(self, group: int, block: int) -> None:
        """Overwrite one block with what no row stores."""
        for tensors in self._groups[group][1]:
            for state in tensors.states.values():
                state[block].fill_(GARBAGE)
            if not tensors.states:
                tensors.page(block).fill_(GARBAGE)


def _by_token(tensors: KVTensors) -> Floats:
    """A slot's storage as ``[block, token, …]``: whatever is stored of one token."""
    data: Floats = tensors.data.numpy()
    return data if isinstance(tensors.spec, LatentSpec) else data.swapaxes(1, 2)


def _places(table: list[int], start: int, stop: int, size: int) -> tuple[Any, Any]:
    """Block and place inside it of each token."""
    positions = np.arange(start, stop)
    return np.asarray(table)[positions // size], positions % size


def _codes(ids: Sequence[int], layer: int, view: Floats) -> Floats:
    """What stands for ids: another number per layer and side (keys are 0, values 1)."""
    codes = np.asarray(ids, np.float32).reshape(-1, *[1] * (view.ndim - 2))
    codes = codes + _PLANE * (2 * layer + 1)
    if view.ndim == 3:
        return codes
    return codes + _PLANE * np.arange(2, dtype=np.float32).reshape(1, 2, 1, 1)


def _first(spec: KVSpec, position: int) -> int:
    """The first token that the one at `position` attends to."""
    if isinstance(spec, SlidingWindowSpec):
        return max(0, position - (spec.window - 1))
    if isinstance(spec, ChunkedLocalSpec):
        return position - position % spec.chunk
    return 0


def _lengths(spec: RecurrentSpec, start: int, stop: int, size: int) -> list[int]:
    """Lengths after which a step leaves a state."""
    inner = [n for n in range(start + 1, stop) if n % size == 0 and spec.cache == "all"]
    return [*inner, stop]


def _state_code(ids: Sequence[int], layer: int) -> int:
    """Small enough to be exact in every dtype."""
    return crc32(array("q", ids).tobytes(), layer) % 251


def _write_state(tensors: KVTensors, block: int, ids: Sequence[int], layer: int) -> None:
    assert block != 0, "the null block is written"
    for number, state in enumerate(tensors.states.values()):
        state[block].fill_(_state_code(ids, 2 * layer + number))


def _check_state(tensors: KVTensors, block: int, ids: Sequence[int], layer: int) -> None:
    for number, (name, state) in enumerate(tensors.states.items()):
        wanted = _state_code(ids, 2 * layer + number)
        assert (state[block] == wanted).all(), (
            f"group {tensors.group}, layer {layer}: block {block} has another {name} than that "
            f"after {len(ids)} tokens"
        )
