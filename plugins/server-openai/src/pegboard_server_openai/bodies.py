"""Bodies of requests. Names and defaults are OpenAI's; what is ours beyond them is said.

Null stands for what is left out, as OpenAI's clients may send it.
"""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "Sampling",
    "StreamOptions",
    "TokenizeRequest",
]


class StreamOptions(msgspec.Struct):
    """What a stream tells beside the text."""

    include_usage: bool | None = None
    """A last chunk without choices tells the usage."""
    continuous_usage_stats: bool | None = None
    """Every chunk tells the usage so far (an addition)."""


class Sampling(msgspec.Struct, kw_only=True):
    """What completions and chats have in common. Those after `user` are additions, named as in
    `pegboard.SamplingParams`."""

    model: str | None = None
    """A served name; left out, the first."""
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    response_format: dict[str, Any] | None = None
    """Only ``{"type": "text"}``."""
    user: str | None = None
    """Taken and not used."""
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    allowed_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    extra_args: dict[str, Any] | None = None
    """Arguments of logits processors."""
    priority: int | None = None
    """Lower is served first."""
    timeout: float | None = None
    """Seconds that the request may take; then it ends with what there is and the finish reason
    ``abort``."""
    cache_salt: str | None = None
    """Only requests with the same salt share the prefix cache."""
    request_id: str | None = None
    """Part of the answer's id; the header ``X-Request-Id`` does the same."""
    return_token_ids: bool | None = None
    """Choices tell the ids of their tokens, and of the prompt's."""
    return_tokens_as_token_ids: bool | None = None
    """Log-probabilities name tokens ``token_id:17``."""


class CompletionRequest(Sampling, kw_only=True):
    """``POST /v1/completions``."""

    prompt: str | list[Any] | None = None
    """A text, a list of token ids, or a list of these."""
    max_tokens: int | None = 16
    echo: bool | None = None
    """The prompt is part of the text."""
    logprobs: int | None = None
    best_of: int | None = None
    """1, or as `n`: no more are made than are returned."""
    suffix: str | None = None
    """Refused: no model here fills in the middle."""


class ChatRequest(Sampling, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: list[Any]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    """The newer name of `max_tokens`."""
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    """Handed to the chat template, as is `verbosity`."""
    verbosity: str | None = None
    chat_template: str | None = None
    """A template's source, or the name of one of the model's (this and what follows: additions)."""
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[Any] | None = None

    @property
    def hints(self) -> dict[str, str]:
        """Variables of the chat template that are fields of their own."""
        found = {"reasoning_effort": self.reasoning_effort, "verbosity": self.verbosity}
        return {name: value for name, value in found.items() if value is not None}


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """``POST /tokenize``: a text, or the messages of a chat."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    messages: list[Any] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """``POST /detokenize``."""

    tokens: list[int]
    model: str | None = None
    skip_special_tokens: bool | None = None
