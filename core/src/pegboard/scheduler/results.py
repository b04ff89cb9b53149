"""What a result means for one request: tokens taken, whether it ends, what is told outside.

Stop strings are found outside and arrive through `finish`.
"""

from __future__ import annotations

from time import monotonic

import msgspec

from pegboard.api.step import PromptLogprobs, StepResult, TokenLogprobs
from pegboard.api.views import EngineOutput
from pegboard.scheduler.request import Request

__all__ = ["LENGTH", "Ending", "make_end", "make_output", "take_scores", "take_tokens"]


class Ending(msgspec.Struct, frozen=True):
    """Why a request ends; the fields of `EngineOutput`."""

    reason: str
    stop_reason: int | None = None


LENGTH = Ending("length")
_MODEL_END = Ending("stop")


def take_tokens(request: Request, tokens: list[int]) -> tuple[list[int], Ending | None]:
    """Append tokens up to the first that ends the request; those, and the ending if any."""
    output, most, ends = request.output_ids, request.max_tokens, request.end_ids
    request.known += len(tokens) - 1  # they take the place of one placeholder
    for position, token in enumerate(tokens):
        output.append(token)
        if token in ends or len(output) >= most:
            ending = _judge(request, token, len(output))
            if ending is not None:
                return tokens[: position + 1], ending
    return tokens, None


def _judge(request: Request, token: int, length: int) -> Ending | None:
    """The ending that the output's last token brings; `length` tokens are sampled."""
    if token in request.end_ids and length >= request.params.min_tokens:
        return Ending("stop", token) if token in request.stop_ids else _MODEL_END
    return LENGTH if length >= request.max_tokens else None


def take_scores(
    request: Request, computed: int, slot: int, result: StepResult
) -> PromptLogprobs | None:
    """The prompt log-probabilities that a chunk ending before token `computed` brings anew.

    After a preemption the runner reports some again; those are left out, so that each position
    arrives once.
    """
    told = request.scored
    request.scored = max(told, min(computed, request.num_prompt - 1))
    scores = result.prompt_logprobs.get(slot)
    if scores is None:
        return None
    entries = scores.entries[max(told + 1 - scores.first, 0) :]
    return PromptLogprobs(max(scores.first, told + 1), entries) if entries else None


def make_output(
    request: Request,
    time: float,
    taken: list[int],
    ending: Ending | None,
    scores: PromptLogprobs | None,
    logprobs: list[TokenLogprobs] | None,
) -> EngineOutput:
    """The message to the front end, made at `time`."""
    output = EngineOutput(request.request_id, taken, cached_tokens=request.cached_tokens, time=time)
    # Most outputs are nothing but a token.
    if request.events:
        output.events = request.take_events()
    if scores is not None:
        output.prompt_logprobs = scores
    if logprobs is not None:
        output.logprobs = logprobs[: len(taken)]
    if ending is not None:
        output.finish_reason, output.stop_reason = ending.reason, ending.stop_reason
        output.kv_transfer = request.kv_params
    return output


def make_end(
    request: Request, reason: str, error: str | None = None, time: float | None = None
) -> EngineOutput:
    """The last message of a request that brings no tokens, made at `time` or now."""
    return EngineOutput(
        request_id=request.origin.request_id,
        token_ids=[],
        finish_reason=reason,
        cached_tokens=request.cached_tokens,
        error=error,
        events=request.take_events(),
        time=monotonic() if time is None else time,
        kv_transfer=request.kv_params,
    )
