"""Token counts on the device, for the requests that have penalties and for no others."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pegboard.api.step import NewRow
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
        output = torch.tensor(row.output_ids, dtype=torch.int64, device=device)
        prompt = torch.tensor(row.prompt_ids, dtype=torch.int64, device=device)
        self._counts[line] = torch.bincount(output, minlength=self._counts.shape[1]).int()
        self._seen[line] = self._counts[line] > 0
        self._seen[line, prompt] = True
        params = row.params
        self._strengths[line] = torch.tensor(
            [params.repetition_penalty, params.frequency_penalty, params.presence_penalty],
            device=device,
        )

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
        rows, lines = torch.tensor(found, dtype=torch.int64, device=self._counts.device).T
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
