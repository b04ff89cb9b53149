"""What users get back: `RequestOutput` and `CompletionOutput`."""

from __future__ import annotations

from typing import Any

import attrs

from pegboard.api.params import Logprob

__all__ = ["CompletionOutput", "RequestMetrics", "RequestOutput"]


@attrs.define
class CompletionOutput:
    """One generated sequence."""

    index: int
    text: str = ""
    token_ids: list[int] = attrs.field(factory=list)
    cumulative_logprob: float | None = None
    """Sum of the log-probabilities of `token_ids`; None unless logprobs were asked for."""
    logprobs: list[dict[int, Logprob]] | None = None
    """Per output token, by token id, the sampled token and the likeliest alternatives."""
    finish_reason: str | None = None
    """``"stop"`` (an end id or a stop string), ``"length"``, ``"abort"``, ``"error"``; None while
    it runs."""
    stop_reason: int | str | None = None
    """The stop token id or stop string that ended it; None for the model's own end id."""
    error: str | None = None
    """Why it could not be finished, with `finish_reason` ``"error"``."""

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@attrs.define
class RequestMetrics:
    """Times in seconds since the epoch."""

    arrival_time: float
    first_token_time: float | None = None
    finished_time: float | None = None


@attrs.define
class RequestOutput:
    """State of one request: complete when `finished`."""

    request_id: str
    prompt: str | None
    """The prompt's text; None if it was given as token ids."""
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    """One entry per prompt token; the first is None, since nothing predicts it."""
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    num_cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache or, through a KV connector, from outside."""
    kv_transfer_params: dict[str, Any] | None = None
    """What a KV connector says of the blocks that it keeps, for the engine that will load them."""
