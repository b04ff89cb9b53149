"""Token counts on the device, for the requests that have penalties and for no others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from pegboard.api.step import NewRow
from pegboard.nn.transit import send
from pegboard.sampling.rows import PenaltyRows

__all__ = ["PenaltyTable"]


class PenaltyTable:
    """One line per request with penalties: what it has seen, how often its output holds each token.

    Prompts are counted one by one into lines as wide as the vocabulary, so their lengths never meet
    and there is no padding that could be penalised.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._lines: dict[int, int] = {}
        """Slot → line."""
        self._free: list[int] = []
        self._seen = torch.zeros((0, vocab_size), dtype=torch.bool, device=device)
        self._counts = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)
        self._strengths = torch.zeros((0, 3), dtype=torch.float32, device=device)
        """Repetition, frequency, presence."""

    def admit(self, row: NewRow) -> None:
        """Count a request's tokens, those sampled before a preemption too."""
        line = self._take_line()
        self._lines[row.slot] = line
        device = self._counts.device
        params = row.params
        output, prompt, strengths = send(
            device,
            np.array(row.output_ids, np.int64),
            np.array(row.prompt_ids, np.int64),
            np.array(
                [params.repetition_penalty, params.frequency_penalty, params.presence_penalty],
                np.float32,
            ),
        )
        self._counts[line].zero_().index_add_(0, output, torch.ones_like(output, dtype=torch.int32))
        self._seen[line] = self._counts[line] > 0
        self._seen[line, prompt] = True
        self._strengths[line] = strengths

    def slots(self) -> set[int]:
        """Slots of requests with penalties."""
        return set(self._lines)

    def release(self, slot: int) -> None:
        """Give the line of a slot back, if it has one."""
        line = self._lines.pop(slot, None)
        if line is not None:
            self._free.append(line)

    def append(self, slots: Sequence[int], ids: torch.Tensor) -> None:
        """Count the tokens ``ids [R]`` just sampled for `slots`."""
        rows, lines = self._find(slots)
        if rows is not None:
            new = ids[rows]
            self._counts[lines, new] += 1
            self._seen[lines, new] = True

    def rows(self, slots: Sequence[int]) -> PenaltyRows | None:
        """The rows of `slots` that have penalties; None if there are none."""
        rows, lines = self._find(slots)
        if rows is None:
            return None
        strengths = self._strengths[lines]
        return PenaltyRows(
            rows=rows,
            seen=self._seen[lines],
            counts=self._counts[lines],
            repetition=strengths[:, 0],
            frequency=strengths[:, 1],
            presence=strengths[:, 2],
        )

    def _find(self, slots: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
        """Places of `slots` in this table, and their lines."""
        if not self._lines:
            return None, None
        found = [(row, self._lines[slot]) for row, slot in enumerate(slots) if slot in self._lines]
        if not found:
            return None, None
        rows, lines = send(self._counts.device, np.array(found, np.int64).T)[0]
        return rows, lines

    def _take_line(self) -> int:
        if not self._free:
            self._grow()
        return self._free.pop()

    def _grow(self) -> None:
        """Double the number of lines; they are made only when requests with penalties come."""
        old = len(self._counts)
        extra = max(1, old)
        self._seen = _lengthened(self._seen, extra)
        self._counts = _lengthened(self._counts, extra)
        self._strengths = _lengthened(self._strengths, extra)
        self._free.extend(range(old + extra - 1, old - 1, -1))


def _lengthened(table: torch.Tensor, extra: int) -> torch.Tensor:
    return torch.cat((table, table.new_zeros((extra, table.shape[1]))))
