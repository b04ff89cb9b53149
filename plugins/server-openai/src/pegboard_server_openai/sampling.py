"""From the fields of a body to `SamplingParams`."""

from __future__ import annotations

from typing import Any

import msgspec

from pegboard import SamplingParams
from pegboard.api.params import MAX_LOGPROBS
from pegboard_server_openai.bodies import ChatRequest, CompletionRequest, Sampling
from pegboard_server_openai.faults import HttpError

__all__ = ["chat_params", "completion_params"]

_SAME = (
    "n",
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "allowed_token_ids",
    "prompt_logprobs",
    "extra_args",
)
"""Fields that have the same name and meaning."""


def completion_params(body: CompletionRequest, defaults: SamplingParams) -> SamplingParams:
    """Parameters of ``/v1/completions``. What is left out is as the model's authors recommend."""
    if body.suffix:
        raise HttpError(
            400, "suffix is not supported: the model does not fill in the middle", param="suffix"
        )
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise HttpError(
            400,
            f"best_of={body.best_of} is not supported: only n ({body.n or 1}), since all that is "
            "made is returned",
            param="best_of",
        )
    own: dict[str, Any] = {"logprobs": _count("logprobs", body.logprobs)}
    if body.echo:
        own["prompt_logprobs"] = _echoed(body)
    elif body.max_tokens == 0:
        raise HttpError(
            400,
            "max_tokens=0 is not allowed without echo: at least 1",
            param="max_tokens",
        )
    return _params(body, defaults, body.max_tokens, own)


def chat_params(body: ChatRequest, defaults: SamplingParams) -> SamplingParams:
    """Parameters of ``/v1/chat/completions``."""
    if body.top_logprobs and not body.logprobs:
        raise HttpError(
            400, "top_logprobs is allowed only together with logprobs=true", param="top_logprobs"
        )
    wanted = _count("top_logprobs", body.top_logprobs) or 0
    new, old = body.max_completion_tokens, body.max_tokens
    limit = old if new is None else new
    if limit == 0:
        field = "max_tokens" if new is None else "max_completion_tokens"
        raise HttpError(400, f"{field}=0 is not allowed: at least 1", param=field)
    return _params(body, defaults, limit, {"logprobs": wanted if body.logprobs else None})


def _params(
    body: Sampling, defaults: SamplingParams, max_tokens: int | None, own: dict[str, Any]
) -> SamplingParams:
    _check_common(body)
    given = {name: getattr(body, name) for name in _SAME} | own
    given["logit_bias"] = _bias(body.logit_bias)
    given = {name: value for name, value in given.items() if value is not None}
    return msgspec.structs.replace(defaults, **given, max_tokens=max_tokens)


def _echoed(body: CompletionRequest) -> int | None:
    """Alternatives to report for the prompt's tokens; without any output there must be some."""
    if body.prompt_logprobs is not None:
        return body.prompt_logprobs
    return 0 if body.logprobs is None and body.max_tokens == 0 else body.logprobs


def _check_common(body: Sampling) -> None:
    _count("prompt_logprobs", body.prompt_logprobs)
    if body.stream_options is not None and not body.stream:
        raise HttpError(
            400, "stream_options is allowed only together with stream=true", param="stream_options"
        )
    if body.stream and body.prompt_logprobs is not None:
        raise HttpError(
            400,
            "prompt_logprobs is not allowed together with stream=true; echo with logprobs is",
            param="prompt_logprobs",
        )
    kind = (body.response_format or {}).get("type", "text")
    if kind != "text":
        raise HttpError(
            400,
            f"response_format of type {kind!r} is not supported: no plugin for structured outputs "
            "is installed; allowed is 'text'",
            param="response_format",
        )


def _count(field: str, value: int | None) -> int | None:
    """Of the whole vocabulary, which -1 means offline, no answer tells."""
    if value is not None and not 0 <= value <= MAX_LOGPROBS:
        raise HttpError(400, f"{field}={value} is not allowed: 0 to {MAX_LOGPROBS}", param=field)
    return value


def _bias(given: dict[str, float] | None) -> dict[int, float] | None:
    if given is None:
        return None
    try:
        return {int(token): value for token, value in given.items()}
    except ValueError:
        raise HttpError(
            400, "the keys of logit_bias must be token ids", param="logit_bias"
        ) from None
