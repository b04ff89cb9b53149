"""The values that pass between the core and a KV connector. Part of `pegboard.api.connector`, which
exports them and is their manual.

All are plain data. `msgspec.to_builtins` turns them into lists and dicts, `msgspec.convert` back.
"""

from __future__ import annotations

from typing import Any

import msgspec

from pegboard.api.views import BlocksView, RequestView

__all__ = [
    "Admitted",
    "Allocated",
    "ConnectorLink",
    "ConnectorStep",
    "FailedBlock",
    "Finished",
    "Keep",
    "Later",
    "Load",
    "Match",
    "MatchAnswer",
    "Now",
    "Pending",
    "Piece",
    "StepOrder",
    "StepView",
    "StoreEvent",
    "TransferReport",
]


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """One whole block of one KV group: what is stored and loaded.

    It is entry `entry` of the request's block table in group `group`. In a group that keeps tokens
    it holds tokens ``entry * block_size`` up to, not including, ``(entry + 1) * block_size``; of
    recurrent state it holds the state after ``(entry + 1) * block_size`` tokens.
    """

    group: int
    entry: int
    block: int
    """Id of the block on this engine's device."""
    key: bytes
    """Names the content: a chained hash of all tokens up to the block's end, of adapter, cache salt
    and media, equal in every process. Equal keys in one group of equal models mean equal content;
    together with `group` and the engine's identity it is the key for an outside store."""


class Load(msgspec.Struct, frozen=True, array_like=True):
    """Blocks to be filled from outside for one request."""

    load_id: int
    """Unique in this engine's life; reports name it."""
    request_id: str
    now: bool
    """Needed by this step's forward pass (`Now`), or between steps (`Later`)."""
    tokens: int
    """Tokens that the request can begin with when all pieces are there."""
    pieces: tuple[Piece, ...]


class Match(msgspec.Struct, frozen=True):
    """A question: how much of this request is in the outside cache?"""

    request: RequestView
    """With `block_hashes` for all whole hash units of its first `limit` tokens."""
    computed: int
    """Leading tokens that this engine's own cache has."""
    limit: int
    """Most leading tokens that the request may begin with, a multiple of the border
    (`SchedulerHalfContext.border`) and below its length, for at least the last token is always
    computed. A prompt of 32 tokens in blocks of 16 has a limit of 16, one of 33 a limit of 32."""


class Pending(msgspec.Struct, frozen=True):
    """Not known yet. The request steps aside for this step; others go on; it is asked again."""


class Now(msgspec.Struct, frozen=True):
    """`tokens` more tokens than `Match.computed` are there and are loaded by the step that begins
    the request: after `WorkerHalf.start_load`, or with the ability `layerwise` after
    `WorkerHalf.wait_layer` of each layer. ``Now(0)`` means that nothing is there."""

    tokens: int


class Later(msgspec.Struct, frozen=True):
    """`tokens` more tokens than `Match.computed` are there and are loaded between steps. The
    request waits with its blocks until the worker reports the load as received."""

    tokens: int
    timeout: float = 120.0
    """Seconds after which the load counts as failed. The worker should give up by itself before
    that; the core stops it with `WorkerHalf.drop`, and reserves the blocks until then."""


MatchAnswer = Pending | Now | Later


class Allocated(msgspec.Struct, frozen=True):
    """The blocks that a match asked for are there; the load is part of the next `StepView`."""

    request: RequestView
    blocks: BlocksView
    """All leading blocks of the request, those of the own cache included; 0 where a group needs
    none."""
    load: Load


class Admitted(msgspec.Struct, frozen=True):
    """A request that got its place on the device in this step."""

    request: RequestView
    blocks: BlocksView
    """Everything in its block tables, those for this step's tokens included."""
    resumed: bool
    """It was running before and was preempted."""


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


class ConnectorLink(msgspec.Struct, frozen=True):
    """What the scheduler half learns of the workers."""

    identity: dict[str, Any]
    handshakes: tuple[Any, ...]
    """By rank, what each `WorkerHalf.attach` returned."""
