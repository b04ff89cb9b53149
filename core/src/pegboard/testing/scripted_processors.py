"""Logits processors for tests: one that reads tokens on the device, one that needs them on the
host, one that never changes the likeliest token."""

from __future__ import annotations

import torch

from pegboard.api.logits import LogitsCall, LogitsContext, LogitsRow

__all__ = ["GapRows", "ParityRows", "SharpRows"]

EXCLUDED = float("-inf")


class GapRows:
    """A token of prompt or output comes again only after ``scripted_gap`` others (1 by default)."""

    def __init__(self, ctx: LogitsContext) -> None:
        self._gaps: dict[int, int] = {}

    def added(self, row: LogitsRow) -> None:
        self._gaps[row.slot] = row.arguments.get("scripted_gap", 1)

    def removed(self, slot: int) -> None:
        self._gaps.pop(slot, None)

    def apply(self, call: LogitsCall) -> torch.Tensor:
        tokens = call.tokens()
        for row, (slot, length) in enumerate(zip(call.slots, call.lengths, strict=True)):
            recent = tokens[row, max(0, length - self._gaps[slot]) : length].long()
            call.logits[row].index_fill_(0, recent, EXCLUDED)
        return call.logits


class ParityRows:
    """Ids are even or odd as the sum of the output so far and ``scripted_parity``."""

    def __init__(self, ctx: LogitsContext) -> None:
        self._parities: dict[int, int] = {}

    def added(self, row: LogitsRow) -> None:
        self._parities[row.slot] = row.arguments.get("scripted_parity", 0)

    def removed(self, slot: int) -> None:
        self._parities.pop(slot, None)

    def apply(self, call: LogitsCall) -> torch.Tensor:
        assert call.output_ids is not None
        logits = call.logits.clone()
        for row, (slot, output) in enumerate(zip(call.slots, call.output_ids, strict=True)):
            wanted = (sum(output) + self._parities[slot]) % 2
            logits[row, 1 - wanted :: 2] = EXCLUDED
        return logits


class SharpRows:
    """Logits times ``scripted_sharpness``."""

    def __init__(self, ctx: LogitsContext) -> None:
        self._factors = torch.ones(ctx.max_rows + 1, device=ctx.device)

    def added(self, row: LogitsRow) -> None:
        self._factors[row.slot] = row.arguments.get("scripted_sharpness", 1.0)

    def removed(self, slot: int) -> None:
        self._factors[slot] = 1.0

    def apply(self, call: LogitsCall) -> torch.Tensor:
        slots = torch.tensor(call.slots, device=call.logits.device)
        return call.logits * self._factors[slots, None]
