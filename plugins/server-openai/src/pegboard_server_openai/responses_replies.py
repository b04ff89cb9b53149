"""Bodies of answers of ``/v1/responses`` and events of their streams, in OpenAI's form."""

from __future__ import annotations

from typing import Any

import msgspec

from pegboard import RequestOutput
from pegboard_server_openai.scores import TokenScore

__all__ = [
    "Completed",
    "Created",
    "Event",
    "Failed",
    "InProgress",
    "Incomplete",
    "ItemAdded",
    "ItemDone",
    "OutputMessage",
    "OutputText",
    "PartAdded",
    "PartDone",
    "Response",
    "ResponseError",
    "ResponseUsage",
    "TextDelta",
    "TextDone",
    "response_usage",
]


class InputDetails(msgspec.Struct):
    """What of the prompt was in the cache. Writing to it is not counted."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct):
    """Nothing of the output is told apart as reasoning."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


def response_usage(output: RequestOutput) -> ResponseUsage:
    """Tokens of the request so far."""
    read = len(output.prompt_token_ids)
    made = sum(len(item.token_ids) for item in output.outputs)
    details = InputDetails(output.num_cached_tokens)
    return ResponseUsage(read, details, made, OutputDetails(), read + made)


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    """The one part of a message."""

    text: str = ""
    annotations: list[Any] = []
    logprobs: list[TokenScore] = []


class OutputMessage(msgspec.Struct, tag_field="type", tag="message"):
    """What the assistant says."""

    id: str
    status: str
    content: list[OutputText] = []
    role: str = "assistant"


class ResponseError(msgspec.Struct):
    """Why a response failed."""

    message: str
    code: str = "server_error"


class IncompleteDetails(msgspec.Struct):
    """Why a response is incomplete: ``max_output_tokens``, or ``abort`` or ``deadline`` where the
    server ended it (the last two: additions)."""

    reason: str


class Response(msgspec.Struct, kw_only=True):
    """A response; the fields that were not asked for have OpenAI's defaults."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: str
    background: bool = False
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] = {}
    model: str
    output: list[OutputMessage] = []
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    reasoning: dict[str, Any] = {}
    safety_identifier: str | None = None
    service_tier: str = "default"
    store: bool = False
    temperature: float
    text: dict[str, Any] = {}
    tool_choice: str = "auto"
    tools: list[Any] = []
    top_logprobs: int = 0
    top_p: float
    truncation: str = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None


class Event(msgspec.Struct, kw_only=True, tag_field="type"):
    """Of a stream; numbered from 0."""

    sequence_number: int


class Lifecycle(Event, kw_only=True):
    """Tells the whole response as it is."""

    response: Response


class Created(Lifecycle, tag="response.created"):
    """The first."""


class InProgress(Lifecycle, tag="response.in_progress"):
    """The second."""


class Completed(Lifecycle, tag="response.completed"):
    """The last, of an answer that has ended by itself."""


class Incomplete(Lifecycle, tag="response.incomplete"):
    """The last, of one that was ended."""


class Failed(Lifecycle, tag="response.failed"):
    """The last, of one that an error has ended."""


class ItemAdded(Event, kw_only=True, tag="response.output_item.added"):
    """A message begins."""

    item: OutputMessage
    output_index: int = 0


class ItemDone(Event, kw_only=True, tag="response.output_item.done"):
    """A message is complete."""

    item: OutputMessage
    output_index: int = 0


class InMessage(Event, kw_only=True):
    """Concerns a part of a message."""

    item_id: str
    output_index: int = 0
    content_index: int = 0


class PartAdded(InMessage, kw_only=True, tag="response.content_part.added"):
    """A part begins."""

    part: OutputText


class PartDone(InMessage, kw_only=True, tag="response.content_part.done"):
    """A part is complete."""

    part: OutputText


class TextDelta(InMessage, kw_only=True, tag="response.output_text.delta"):
    """More text."""

    delta: str
    logprobs: list[TokenScore] = []


class TextDone(InMessage, kw_only=True, tag="response.output_text.done"):
    """The text is complete."""

    text: str
    logprobs: list[TokenScore] = []
