"""Conversations, put together from the items and blocks of other APIs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pegboard_server_openai.faults import HttpError

__all__ = ["Conversation", "bad", "opened", "text_of", "texts_of", "unsupported"]

_NOT_TEXT = ("document", "image", "input_audio", "input_file", "input_image", "search_result")


class Conversation:
    """Messages as chat templates know them.

    What an assistant's turn brings in several pieces (thoughts, a text, calls of tools) becomes one
    message.
    """

    def __init__(self, messages: Iterable[dict[str, Any]] = ()) -> None:
        self.messages = list(messages)
        self._tools: dict[str, str] = {
            call["id"]: call["function"]["name"]
            for message in self.messages
            for call in message.get("tool_calls", ())
        }

    def say(self, role: str, texts: Sequence[str]) -> None:
        """A message. The assistant's goes with thoughts that came just before."""
        last = self.messages[-1] if self.messages else {}
        if role == "assistant" and _only_thought(last):
            last["content"] = _content(texts)
        else:
            self.messages.append({"role": role, "content": _content(texts)})

    def think(self, text: str) -> None:
        """Thoughts of the assistant, before what it says."""
        if not (self.messages and _only_thought(self.messages[-1])):
            self.messages.append({"role": "assistant", "content": None, "reasoning_content": text})
        else:
            self.messages[-1]["reasoning_content"] += "\n" + text

    def call(self, call_id: str, name: str, arguments: Any) -> None:
        """The assistant calls a tool; `arguments`: a mapping, or JSON text."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": None})
        function = {"name": name, "arguments": arguments}
        calls = self.messages[-1].setdefault("tool_calls", [])
        calls.append({"id": call_id, "type": "function", "function": function})
        self._tools[call_id] = name

    def answer(self, call_id: str, texts: Sequence[str], place: str, **more: Any) -> None:
        """What a tool answered. Raises `HttpError` 400 if it was not called."""
        if call_id not in self._tools:
            raise bad(place, f"names {call_id!r}, but no tool was called with that id before")
        name = self._tools[call_id]
        message = {"role": "tool", "tool_call_id": call_id, "name": name, **more}
        self.messages.append({**message, "content": _content(texts)})


def opened(system: Sequence[str], messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages after one of the system that says `system`.

    System messages at their beginning become a part of it: many templates take only one.
    """
    texts = list(system)
    count = 0
    for message in messages:
        if message["role"] != "system":
            break
        texts += texts_of(message["content"], "system")
        count += 1
    rest = list(messages[count:])
    return [{"role": "system", "content": _content(texts)}, *rest] if texts else rest


def texts_of(
    content: Any, place: str, kinds: Mapping[str, str] | None = None, *, name: str = "part"
) -> list[str]:
    """The texts of a content, which is one text or a list of parts.

    `kinds`: which types of parts are allowed, and where each has its text; `name`: what the API
    calls a part. Raises `HttpError` 400 that names the place.
    """
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise bad(place, f"must be a text or a list of {name}s")
    allowed = kinds or {"text": "text"}
    return [_part(part, f"{place}[{i}]", allowed) for i, part in enumerate(content)]


def text_of(value: Mapping[str, Any], key: str, place: str) -> str:
    """The text under a key. Raises `HttpError` 400 that names the place."""
    text = value.get(key)
    if not isinstance(text, str):
        raise bad(f"{place}.{key}", "must be a text")
    return text


def bad(place: str, problem: str) -> HttpError:
    """Status 400, of the parameter that the place is in."""
    param = place.partition("[")[0].partition(".")[0]
    return HttpError(400, f"{place} {problem}", param=param)


def unsupported(place: str, kind: Any, allowed: Iterable[str]) -> HttpError:
    """Status 400, of a part of a type that is not allowed."""
    missing = f"no plugin for {kind} is installed; " if kind in _NOT_TEXT else ""
    names = ", ".join(sorted(allowed))
    return bad(place, f"is of type {kind!r}, which is not supported: {missing}allowed is {names}")


def _part(part: Any, place: str, allowed: Mapping[str, str]) -> str:
    if not isinstance(part, Mapping):
        raise bad(place, "must be an object with 'type'")
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in allowed:
        raise unsupported(place, kind, allowed)
    return text_of(part, allowed[kind], place)


def _content(texts: Sequence[str]) -> str | list[dict[str, str]]:
    if len(texts) > 1:
        return [{"type": "text", "text": text} for text in texts]
    return texts[0] if texts else ""


def _only_thought(message: Mapping[str, Any]) -> bool:
    return (
        "reasoning_content" in message
        and message["content"] is None
        and "tool_calls" not in message
    )
