"""Server-sent events out of the bytes of a connection."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["DONE", "Choice", "Delta", "Events", "Frame", "Usage", "read_frame"]

DONE = b"[DONE]"


class Events:
    """Finds the data of events in bytes that come in pieces of any size."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def rest(self) -> bytes:
        """What has come of an event that is not complete, or of an answer without events."""
        return self._rest

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that `data` completes, in order."""
        text = self._rest + data if self._rest else data
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n")
        *whole, self._rest = text.split(b"\n\n")
        found = []
        for block in whole:
            data = _data_of(block)
            if data:
                found.append(data)
        return found


def _data_of(block: bytes) -> bytes:
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    lines = [line for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)


class Delta(msgspec.Struct, gc=False):
    """What a chunk of a chat adds."""

    content: str | None = None
    role: str | None = None
    reasoning_content: str | None = None


class Choice(msgspec.Struct, gc=False):
    """One choice of a chunk, of a chat or of a completion."""

    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def shown(self) -> str:
        """The text that it adds."""
        return (self.text if self.delta is None else self.delta.content) or ""


class Usage(msgspec.Struct, gc=False):
    """Tokens as the server counts them."""

    prompt_tokens: int = 0
    completion_tokens: int | None = 0


class Frame(msgspec.Struct, gc=False):
    """One chunk of a streamed answer, as far as clients here read it."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None
    """Instead of a chunk: why the answer breaks off."""

    @property
    def bears_token(self) -> bool:
        """Whether it shows a step of the answer: not the role at the beginning of a chat, not a
        farewell without text, not the usage."""
        for choice in self.choices:
            if choice.shown or (choice.delta is not None and choice.delta.reasoning_content):
                return True
            opening = choice.delta is not None and choice.delta.role is not None
            if not opening and choice.finish_reason is None:
                return True
        return False


_DECODER = msgspec.json.Decoder(Frame)


def read_frame(data: bytes) -> Frame:
    """Raises `msgspec.DecodeError` (or its `ValidationError`) for what is no chunk."""
    return _DECODER.decode(data)
