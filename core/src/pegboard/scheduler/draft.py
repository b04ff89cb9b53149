"""A step while it is being planned, and what is remembered of it until its update."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from pegboard.api.step import BlockCopy, NewRow, StepPlan
from pegboard.kv import Block
from pegboard.scheduler.request import Request

__all__ = ["Draft", "Record"]


class Record(msgspec.Struct, eq=False):
    """A plan in flight: who its rows are. Columns have one entry per row, as in the plan."""

    plan: StepPlan
    requests: list[Request]
    epochs: list[int]
    """Epoch of each request at planning."""
    loose: list[Block]
    """Referenced until the update: sources of copies, and blocks given up while the step writes
    them."""


class Draft:
    """Collects the rows of one step under a token budget."""

    def __init__(self, step_id: int, budget: int) -> None:
        self.budget = budget
        """Tokens that may still be planned."""
        self.short = False
        """Blocks are short: somebody was preempted, or waits for steps in flight to free some."""
        self.loose: list[Block] = []
        self.step_id = step_id
        self._copies: list[BlockCopy] = []
        # A tuple per row is quicker to collect than a column per field.
        self._rows: list[tuple[Request, int, int, int, int, bool, list[list[int]]]] = []
        self._new_rows: dict[Request, NewRow] = {}

    @property
    def empty(self) -> bool:
        """No rows."""
        return not self._rows

    def restate(self, request: Request, blocks: list[list[int]]) -> None:
        """Tell the runner all about a request; `blocks` are those it holds before this step."""
        self._new_rows[request] = request.new_row(blocks)

    def add_row(self, request: Request, count: int, new_blocks: list[list[int]]) -> None:
        """Plan `count` more tokens of a running request."""
        start = request.planned
        samples = request.schedule(count, self.step_id)
        self._rows.append((request, request.epoch, request.slot, start, count, samples, new_blocks))
        self.budget -= count

    def add_copies(self, copies: list[BlockCopy], sources: Iterable[Block] = ()) -> None:
        """Copy blocks before the forward pass; the step takes over the references on `sources`."""
        self._copies += copies
        self.loose += sources

    def drop(self, request: Request) -> None:
        """A running request without a row in this step is preempted."""
        self.short = True
        self._new_rows.pop(request, None)

    def seal(self, freed_slots: list[int], resync: bool) -> Record:
        """The finished plan."""
        columns: list[list[Any]] = [list(column) for column in zip(*self._rows, strict=True)]
        requests, epochs, slots, starts, counts, samples, new = columns or [[] for _ in range(7)]
        return Record(
            StepPlan(
                self.step_id,
                slots,
                starts,
                counts,
                samples,
                new,
                new_rows=list(self._new_rows.values()),
                freed_slots=[] if resync else freed_slots,
                resync=resync,
                copies=self._copies,
            ),
            requests,
            epochs,
            self.loose,
        )
