"""Frozen views of what the scheduler knows, for plugins. They never hand out the scheduler's own
objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from pegboard.api.params import SamplingParams
from pegboard.api.scores import PromptLogprobs, TokenLogprobs

__all__ = ["BlocksView", "EngineOutput", "EngineRequest", "RequestEvent", "RequestView"]


class EngineRequest(msgspec.Struct):
    """A checked request as it enters the engine: token ids, no text."""

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    seed: int
    """Drawn by the front end if the user gave none."""
    end_ids: list[int] = msgspec.field(default_factory=list)
    """The model's end ids and the request's stop ids; sampling one of them ends the request."""
    max_tokens: int = 16
    """`params.max_tokens` bounded by the room in the context."""
    arrival: float = 0.0
    """Seconds since the epoch."""
    priority: int = 0
    """Lower runs first, where the policy looks at it."""
    parent: str | None = None
    """The request whose prompt this one shares (n > 1)."""
    child: int = 0
    cache_salt: str | None = None
    adapter: str | None = None
    """Stable identity of the adapter (content, not name)."""
    media: list[tuple[int, int, bytes]] = msgspec.field(default_factory=list)
    """``(offset, length, digest)`` of each media item in the prompt, in order."""
    kv_transfer: dict[str, Any] | None = None
    encoder_tokens: int = 0
    """Tokens that cross-attention reads, of models with an encoder."""


class RequestEvent(msgspec.Struct, frozen=True):
    """Something that happened to a request in the scheduler."""

    kind: Literal["QUEUED", "SCHEDULED", "PREEMPTED"]
    """Taken in; began to run, for the first time or again; lost its blocks and waits again."""
    time: float
    """Seconds of the engine's monotonic clock."""


class EngineOutput(msgspec.Struct, gc=False, omit_defaults=True):
    """What one step brought for one request."""

    request_id: str
    token_ids: list[int]
    finish_reason: str | None = None
    """``"stop"``, ``"length"``, ``"abort"``, ``"error"``."""
    stop_reason: int | str | None = None
    """The stop id or text that ended it; None for an end-of-sequence id."""
    logprobs: list[TokenLogprobs] | None = None
    """One entry per token."""
    prompt_logprobs: PromptLogprobs | None = None
    """Of this step's chunk."""
    cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache or from outside."""
    error: str | None = None
    events: Sequence[RequestEvent] = ()
    """What happened since the last output, oldest first."""
    time: float = 0.0
    """When the scheduler made this output, in seconds of the engine's monotonic clock."""
    kv_transfer: dict[str, Any] | None = None
    """What the KV connector says of the blocks that it keeps (`Keep.params`), with the last
    output."""


class RequestView(msgspec.Struct, frozen=True):
    """A request as plugins see it."""

    request_id: str
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    computed: int
    """Tokens whose keys and values are in the cache."""
    block_hashes: Sequence[bytes]
    priority: int
    arrival: float
    params: SamplingParams
    cache_salt: str | None
    adapter: str | None
    media: Sequence[tuple[int, int, bytes]]
    kv_transfer: dict[str, Any] | None


class BlocksView(msgspec.Struct, frozen=True):
    """Block ids per KV group."""

    groups: tuple[tuple[int, ...], ...]
