"""Bodies of answers, in OpenAI's form; fields beyond it are said."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import UNSET, UnsetType

from pegboard import Logprob, RequestOutput
from pegboard_server_openai.scores import ChatScores, CompletionScores

__all__ = [
    "ChatChoice",
    "ChatChunk",
    "ChatReply",
    "ChunkChoice",
    "CompletionChoice",
    "CompletionReply",
    "Delta",
    "Message",
    "Usage",
    "usage_of",
]

PromptScores = list[dict[int, Logprob] | None]


class CachedTokens(msgspec.Struct):
    """How many tokens of the prompt were in the cache."""

    cached_tokens: int


class Usage(msgspec.Struct):
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


def usage_of(outputs: Iterable[RequestOutput]) -> Usage:
    """Tokens of these requests so far."""
    prompt = made = cached = 0
    for output in outputs:
        prompt += len(output.prompt_token_ids)
        made += sum(len(item.token_ids) for item in output.outputs)
        cached += output.num_cached_tokens
    return Usage(prompt, made, prompt + made, CachedTokens(cached))


class CompletionChoice(msgspec.Struct):
    """One text, or a piece of one. Fields after `finish_reason` are additions."""

    index: int
    text: str
    logprobs: CompletionScores | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptScores | UnsetType | None = UNSET


class CompletionReply(msgspec.Struct, kw_only=True):
    """The answer of ``/v1/completions``, and each chunk of its stream."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


class Message(msgspec.Struct):
    """What the assistant says."""

    content: str
    role: str = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct):
    """One answer of a chat. Fields after `finish_reason` are additions."""

    index: int
    message: Message
    logprobs: ChatScores | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatReply(msgspec.Struct, kw_only=True):
    """The answer of ``/v1/chat/completions``. The last two fields are additions."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptScores | UnsetType | None = UNSET


class Delta(msgspec.Struct):
    """What is new in an answer."""

    content: str | UnsetType = UNSET
    role: str | UnsetType = UNSET


class ChunkChoice(msgspec.Struct):
    """One answer's part of a chunk."""

    index: int
    delta: Delta
    logprobs: ChatScores | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    """A chunk of the stream of a chat. `prompt_token_ids` is an addition."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
