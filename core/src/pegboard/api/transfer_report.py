"""What worker halves tell. Part of `pegboard.api.transfer`."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["ConnectorLink", "FailedBlock", "StoreEvent", "TransferReport"]


class FailedBlock(msgspec.Struct, frozen=True, array_like=True):
    """A block that a load could not fill."""

    load_id: int
    group: int
    block: int


class TransferReport(msgspec.Struct):
    """What a worker half has to tell after a step. Ids that the core does not know (any more) are
    ignored, so late and double reports do no harm."""

    received: list[int] = msgspec.field(default_factory=list)
    """`Load.load_id` of loads between steps (`Later`) that are over, well or not. Nothing is
    written to their blocks any more."""
    failed: list[FailedBlock] = msgspec.field(default_factory=list)
    """Blocks that were not filled. For a `Now` load: in the report of its own step. For a `Later`
    load: at the latest together with `received`."""
    sent: list[int] = msgspec.field(default_factory=list)
    """`Finished.keep_id` of kept blocks that are no longer needed."""
    saved: list[int] = msgspec.field(default_factory=list)
    """`StepView.step_id` of steps whose `StepOrder.holds` are no longer needed."""
    stats: dict[str, float] = msgspec.field(default_factory=dict)
    """Increments of counters since the last report."""
    extra: Any = None
    """Plain data for the connector's own scheduler half."""
    astray: list[int] = msgspec.field(default_factory=list)
    """`Load.load_id` of loads that have failed as a whole although something may still be written
    to their blocks, since the half broke down and could not be stopped either. The blocks stay
    reserved until `WorkerHalf.drop` succeeds or a later report names the load as received."""
    stopped: list[int] = msgspec.field(default_factory=list)
    """Filled in by the core: loads that `WorkerHalf.drop` stopped in this step."""

    @property
    def empty(self) -> bool:
        """Nothing is over and nothing is told."""
        over = self.received or self.failed or self.sent or self.saved or self.stopped
        return not over and self.extra is None


class StoreEvent(msgspec.Struct, frozen=True):
    """Content came to, or left, an outside store."""

    kind: str
    """``"stored"`` or ``"removed"``."""
    group: int
    keys: tuple[bytes, ...]
    """As in `Piece.key`."""
    medium: str
    """Where: ``"cpu"``, ``"disk"``, or a name of the connector's own."""


class ConnectorLink(msgspec.Struct, frozen=True):
    """What the scheduler half learns of the workers."""

    identity: dict[str, Any]
    handshakes: tuple[Any, ...]
    """By rank, what each `WorkerHalf.attach` returned."""
