"""A step while it is being planned, and what is remembered of it until its update."""

from __future__ import annotations

from collections.abc import Iterable
from operator import sub

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
    stops: list[int]
    """Tokens computed after this step."""
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
        self._requests: list[Request] = []
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._samples: list[bool] = []
        self._new_blocks: list[list[list[int]]] = []
        self._new_rows: dict[Request, NewRow] = {}

    @property
    def empty(self) -> bool:
        """No rows."""
        return not self._requests

    def restate(self, request: Request, blocks: list[list[int]]) -> None:
        """Tell the runner all about a request; `blocks` are those it holds before this step."""
        self._new_rows[request] = request.new_row(blocks)

    def add_row(self, request: Request, start: int, stop: int, new_blocks: list[list[int]]) -> None:
        """Plan the next tokens of a running request, from `start` up to `stop`."""
        self._requests.append(request)
        self._starts.append(start)
        self._stops.append(stop)
        self._samples.append(request.schedule(stop, self.step_id))
        self._new_blocks.append(new_blocks)
        self.budget -= stop - start

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
        requests, starts, stops = self._requests, self._starts, self._stops
        return Record(
            StepPlan(
                self.step_id,
                [request.slot for request in requests],
                starts,
                list(map(sub, stops, starts)),
                self._samples,
                self._new_blocks,
                new_rows=list(self._new_rows.values()),
                freed_slots=[] if resync else freed_slots,
                resync=resync,
                copies=self._copies,
            ),
            requests,
            [request.epoch for request in requests],
            stops,
            self.loose,
        )
