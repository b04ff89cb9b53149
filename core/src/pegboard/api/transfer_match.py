"""Pieces, loads, and what is asked and said before a request starts. Part of
`pegboard.api.transfer`.
"""

from __future__ import annotations

import msgspec

from pegboard.api.views import BlocksView, RequestView

__all__ = [
    "Admitted",
    "Allocated",
    "Later",
    "Load",
    "Match",
    "MatchAnswer",
    "Now",
    "Pending",
    "Piece",
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
