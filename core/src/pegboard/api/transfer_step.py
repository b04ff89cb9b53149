"""What passes in a step and at the end of a request. Part of `pegboard.api.transfer`."""

from __future__ import annotations

from typing import Any

import msgspec

from pegboard.api.transfer_match import Admitted, Load, Piece
from pegboard.api.views import BlocksView, RequestView

__all__ = ["ConnectorStep", "Finished", "Keep", "StepOrder", "StepView"]


class StepView(msgspec.Struct, frozen=True):
    """One step, as it was planned. The columns `request_ids`, `starts`, `counts`, `new_blocks` have
    one entry per row. A step may have no rows and still carry transfers."""

    step_id: int
    request_ids: tuple[str, ...]
    starts: tuple[int, ...]
    """Tokens computed before this step."""
    counts: tuple[int, ...]
    """Tokens to be computed in this step."""
    new_blocks: tuple[BlocksView, ...]
    """Per row, blocks appended to its tables in this step; of admitted rows see `admitted`."""
    admitted: tuple[Admitted, ...]
    loads: tuple[Load, ...]
    """Loads that begin with this step."""
    filled: tuple[Piece, ...]
    """Blocks whose content became complete in steps that are over. Nothing changes them any more,
    and the core keeps them until this step is over, so they can be saved during it."""
    preempted: tuple[str, ...]
    """Requests that lost their blocks since the last step. They come back in `admitted`."""
    finished: tuple[str, ...]
    """Requests that ended since the last step."""
    dropped: tuple[int, ...]
    """Ids of loads that were given up since the last step: the request ended while it waited, time
    ran out, or `SchedulerHalf.step` raised for the step that was to begin them; these must not
    begin any more. Nobody reads the blocks. They stay reserved until the worker reports the load
    as received, or was stopped with `WorkerHalf.drop` when its time ran out. Told again if the
    half raises."""


class StepOrder(msgspec.Struct, frozen=True):
    """A connector's answer to a step."""

    metadata: Any = None
    """What the worker halves get: plain data (None, numbers, text, bytes, lists, dicts with text
    or integer keys). It may reach another process as msgpack, so a tuple may arrive as a list."""
    holds: tuple[int, ...] = ()
    """Ids of blocks, all in use in this step, that a worker goes on reading after the step. The
    core keeps them from being used again until `TransferReport.saved` names the step."""
    timeout: float = 120.0
    """Seconds after which `holds` are released without a report."""


class Finished(msgspec.Struct, frozen=True):
    """A request ended, for whatever reason, also one that never ran."""

    request: RequestView
    blocks: BlocksView
    """What it held, empty if it was not running; 0 where nothing is kept any more. The first
    `request.computed` tokens are valid in them."""
    reason: str
    """``"stop"``, ``"length"``, ``"abort"`` or ``"error"``."""
    keep_id: int
    """Names the blocks in `TransferReport.sent` if they are kept."""


class Keep(msgspec.Struct, frozen=True):
    """The blocks of an ended request belong to the connector until a worker reports `keep_id` as
    sent."""

    timeout: float
    """Seconds after which the blocks are released without a report."""
    params: dict[str, Any] | None = None
    """Plain data for the client: `RequestOutput.kv_transfer_params`."""


class ConnectorStep(msgspec.Struct):
    """The part of a `StepPlan` that is for the worker halves."""

    metadata: Any
    """`StepOrder.metadata`."""
    loads: list[Load] = msgspec.field(default_factory=list)
    """Those that begin with this step: should a half break down, they have failed."""
    reset: str | None = None
    """Why the worker halves forget everything first, if they do."""
    broken: bool = False
    """The scheduler half broke down: the worker halves are only polled, and stopped."""
    dropped: list[int] = msgspec.field(default_factory=list)
    """Loads given up that the worker halves are to be stopped from (`WorkerHalf.drop`)."""
