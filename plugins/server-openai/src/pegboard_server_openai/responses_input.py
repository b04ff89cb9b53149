"""Items of ``/v1/responses`` as messages of a conversation."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

from pegboard_server_openai.conversation import Conversation, bad, text_of, texts_of

__all__ = ["add_input", "listed_items"]

Item = dict[str, Any]

_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_THOUGHTS = {"reasoning_text": "text", "summary_text": "text", "text": "text"}
_PREFIXES = {
    "function_call": "fc",
    "function_call_output": "fco",
    "message": "msg",
    "reasoning": "rs",
}
"""Of ids."""
_ROLES = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    # The same by another name, which few templates know.
    "developer": "system",
}


def add_input(conversation: Conversation, given: Any) -> None:
    """Add a text of the user, or a list of items. Raises `HttpError` 400 that names the place."""
    if given is None or given == []:
        raise bad("input", "is missing: a text, or a list of items")
    if isinstance(given, str):
        conversation.say("user", [given])
        return
    for number, item in enumerate(given):
        place = f"input[{number}]"
        if not isinstance(item, dict):
            raise bad(place, "must be an object")
        _adder(item, place)(conversation, item, place)


def listed_items(given: Any) -> list[Item]:
    """A valid input as it is told later: items only, each with a type and an id."""
    if isinstance(given, str):
        part = {"type": "input_text", "text": given}
        given = [{"role": "user", "status": "completed", "content": [part]}]
    return [_told(item) for item in given]


def _told(item: Item) -> Item:
    kind = item.get("type") or "message"
    told = {**item, "type": kind, "id": item.get("id") or f"{_PREFIXES[kind]}_{uuid.uuid4().hex}"}
    if kind == "message" and isinstance(item["content"], str):
        name = "output_text" if item["role"] == "assistant" else "input_text"
        told["content"] = [{"type": name, "text": item["content"]}]
    return told


def _adder(item: Item, place: str) -> Callable[[Conversation, Item, str], None]:
    kind = item.get("type") or "message"
    if not isinstance(kind, str) or kind not in _ADDERS:
        raise bad(
            f"{place}.type",
            f"is {kind!r}, which is not supported; allowed are {', '.join(sorted(_ADDERS))}",
        )
    return _ADDERS[kind]


def _message(conversation: Conversation, item: Item, place: str) -> None:
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise bad(f"{place}.role", f"is {role!r}; allowed are {', '.join(sorted(_ROLES))}")
    texts = texts_of(item.get("content"), f"{place}.content", _PARTS)
    conversation.say(_ROLES[role], texts)


def _call(conversation: Conversation, item: Item, place: str) -> None:
    call_id, name, arguments = (
        text_of(item, key, place) for key in ("call_id", "name", "arguments")
    )
    if not name:
        raise bad(f"{place}.name", "must not be empty")
    if arguments.strip() and not isinstance(_json(arguments), dict):
        raise bad(f"{place}.arguments", "must be the text of a JSON object")
    conversation.call(call_id, name, arguments)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _call_output(conversation: Conversation, item: Item, place: str) -> None:
    texts = texts_of(item.get("output"), f"{place}.output", _PARTS)
    conversation.answer(text_of(item, "call_id", place), texts, f"{place}.call_id")


def _reasoning(conversation: Conversation, item: Item, place: str) -> None:
    """What is encrypted cannot be read and is passed over."""
    for key in ("content", "summary"):
        texts = texts_of(item.get(key) or [], f"{place}.{key}", _THOUGHTS)
        if texts:
            conversation.think("\n".join(texts))
            return


_ADDERS = {
    "message": _message,
    "function_call": _call,
    "function_call_output": _call_output,
    "reasoning": _reasoning,
}
