"""Bodies of answers of ``/v1/messages`` and events of their streams, in Anthropic's form."""

from __future__ import annotations

import msgspec

from pegboard import RequestOutput

__all__ = [
    "BlockDelta",
    "BlockStart",
    "BlockStop",
    "ErrorEvent",
    "Fault",
    "Message",
    "MessageDelta",
    "MessageStart",
    "MessageStop",
    "MessageUsage",
    "Ping",
    "Stop",
    "TextBlock",
    "TextDelta",
    "message_usage",
]


class MessageUsage(msgspec.Struct):
    """Tokens of a message: those of the prompt that were in the cache are counted apart. Writing
    to the cache is not counted."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0


def message_usage(output: RequestOutput) -> MessageUsage:
    """Tokens of the request so far."""
    cached = output.num_cached_tokens
    made = sum(len(item.token_ids) for item in output.outputs)
    return MessageUsage(len(output.prompt_token_ids) - cached, made, cached)


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    """What the assistant says."""

    text: str


class Message(msgspec.Struct, tag_field="type", tag="message", kw_only=True):
    """An answer."""

    id: str
    role: str = "assistant"
    model: str
    content: list[TextBlock]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    """The first event: the message without content."""

    message: Message


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    """Says nothing."""


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    """A block begins."""

    content_block: TextBlock
    index: int = 0


class TextDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    """More text."""

    text: str


class BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    """A block grows."""

    delta: TextDelta
    index: int = 0


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    """A block is complete."""

    index: int = 0


class Stop(msgspec.Struct):
    """Why a message ended."""

    stop_reason: str
    stop_sequence: str | None = None


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    """What is known at the end."""

    delta: Stop
    usage: MessageUsage


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    """The last event."""


class Fault(msgspec.Struct):
    """What went wrong."""

    type: str
    message: str


class ErrorEvent(msgspec.Struct, tag_field="type", tag="error"):
    """The body of an error, and the last event of a stream that failed."""

    error: Fault
