"""What a step reads and writes of recurrent states, from the rows' block tables.

Vectorised over rows; the rule for entries is in `pegboard.api.kv.RecurrentSpec`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from pegboard.api.kv import KVGroup, RecurrentSpec
from pegboard.api.recurrent import RecurrentStep
from pegboard.nn.transit import send

__all__ = ["recurrent_step"]

Ints = np.ndarray[Any, np.dtype[np.int64]]


def recurrent_step(
    group: KVGroup, starts: Ints, counts: Ints, table: torch.Tensor
) -> RecurrentStep:
    """Rows over the tokens `starts` to ``starts + counts``, as a group of states sees them.

    ``table int32 [R, entries]`` are the rows' block tables.
    """
    size, stops = group.block_size, starts + counts
    has_state = starts > 0
    entries = np.stack((np.maximum(starts - 1, 0) // size, (stops - 1) // size, has_state))
    rows = torch.arange(len(starts), device=table.device)
    borders, places = _borders(group, starts, stops)
    bounds = np.concatenate((np.zeros(1, np.int64), counts.cumsum())).astype(np.int32)
    entries_there, places_there, bounds_there = send(table.device, entries, places, bounds)
    read_entries, write_entries, begun = entries_there
    border_rows, border_entries = places_there
    return RecurrentStep(
        query_lens=counts.tolist(),
        has_state=has_state.tolist(),
        query_starts=bounds_there,
        has_state_device=begun.bool(),
        reads=table[rows, read_entries].long() * begun,
        writes=table[rows, write_entries].long(),
        borders=borders,
        border_blocks=table[border_rows, border_entries].long(),
    )


def _borders(group: KVGroup, starts: Ints, stops: Ints) -> tuple[list[list[int]], Ints]:
    """Per row, tokens of the step before each border inside it; and int64 [2, borders], row and
    entry of each."""
    assert isinstance(group.spec, RecurrentSpec)
    if group.spec.cache != "all":
        return [[] for _ in starts], np.zeros((2, 0), np.int64)
    size = group.block_size
    # Borders lie strictly inside a step: the state at its end is written anyway.
    found = [
        np.arange(start // size + 1, (stop - 1) // size + 1)
        for start, stop in zip(starts, stops, strict=True)
    ]
    lists = [
        (numbers * size - start).tolist() for numbers, start in zip(found, starts, strict=True)
    ]
    rows = np.repeat(np.arange(len(found)), [len(numbers) for numbers in found])
    entries = np.concatenate([*found, np.zeros(0, np.int64)]) - 1
    return lists, np.stack((rows, entries.astype(np.int64)))
