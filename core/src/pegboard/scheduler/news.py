"""What happened since the last step, for the KV connector's view of the next one."""

from __future__ import annotations

from collections.abc import Iterator

from pegboard.api.connector import Admitted, Piece, StepView
from pegboard.api.views import BlocksView
from pegboard.kv import Block
from pegboard.kv.outside import OutsideBlocks
from pegboard.scheduler.draft import Record
from pegboard.scheduler.loads import Flight
from pegboard.scheduler.request import Request
from pegboard.scheduler.views import NO_BLOCKS, blocks_view, request_view

__all__ = ["News"]


class News:
    """Collected between two steps, then told and thrown away."""

    def __init__(self) -> None:
        self.begun: list[Flight] = []
        self.admitted: list[tuple[Request, bool]] = []
        """With whether it was preempted before."""
        self.filled: list[Piece] = []
        self.filled_blocks: list[Block] = []
        """Referenced, so that the next step can save them."""
        self.preempted: list[str] = []
        self.finished: list[str] = []
        self.dropped: list[int] = []
        self.pending = False
        """A request stepped aside, since the connector does not know yet."""

    @property
    def urgent(self) -> bool:
        """Worth a step of its own."""
        return bool(self.filled) or self.pending

    def view(self, record: Record, outside: OutsideBlocks) -> StepView:
        """The view of a step that was planned."""
        plan = record.plan
        return StepView(
            step_id=plan.step_id,
            request_ids=tuple(request.request_id for request in record.requests),
            starts=tuple(plan.starts),
            counts=tuple(plan.counts),
            new_blocks=tuple(_new_blocks(blocks) for blocks in plan.new_blocks),
            admitted=tuple(self._admissions(outside)),
            loads=tuple(flight.load for flight in self.begun),
            filled=tuple(self.filled),
            preempted=tuple(self.preempted),
            finished=tuple(self.finished),
            dropped=tuple(self.dropped),
        )

    def _admissions(self, outside: OutsideBlocks) -> Iterator[Admitted]:
        for request, resumed in self.admitted:
            hashes = outside.hashes(request.kv, request.num_prompt)
            blocks = blocks_view(request.kv.block_ids())
            yield Admitted(request_view(request, hashes), blocks, resumed)


def _new_blocks(blocks: list[list[int]]) -> BlocksView:
    return blocks_view(blocks) if any(blocks) else NO_BLOCKS
