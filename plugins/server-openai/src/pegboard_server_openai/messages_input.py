"""Messages of ``/v1/messages`` as those that chat templates know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pegboard_server_openai.conversation import (
    Conversation,
    bad,
    opened,
    text_of,
    texts_of,
    unsupported,
)
from pegboard_server_openai.messages_bodies import CountTokensRequest

__all__ = ["chat_messages", "goes_on"]

Block = dict[str, Any]

_TEXT = {"text": "text"}


def chat_messages(body: CountTokensRequest) -> list[dict[str, Any]]:
    """The conversation of a body. Raises `HttpError` 400 that names the place."""
    if not body.messages:
        raise bad("messages", "must hold at least one message")
    conversation = Conversation()
    for number, message in enumerate(body.messages):
        place = f"messages[{number}]"
        if not isinstance(message, dict):
            raise bad(place, "must be an object with 'role' and 'content'")
        _add(conversation, message, place)
    system = [] if body.system is None else texts_of(body.system, "system", _TEXT, name="block")
    return opened([text for text in system if text], conversation.messages)


def goes_on(messages: list[dict[str, Any]]) -> bool:
    """The last message is the beginning of the answer."""
    last = messages[-1] if messages else {"role": ""}
    return last["role"] == "assistant" and bool(last["content"]) and "tool_calls" not in last


def _add(conversation: Conversation, message: dict[str, Any], place: str) -> None:
    role = message.get("role")
    if not isinstance(role, str) or role not in _BLOCKS:
        raise bad(f"{place}.role", f"is {role!r}; allowed are {', '.join(sorted(_BLOCKS))}")
    content = message.get("content")
    if not isinstance(content, list):
        conversation.say(role, texts_of(content, f"{place}.content", name="block"))
        return
    texts: list[str] = []
    for number, block in enumerate(content):
        where = f"{place}.content[{number}]"
        adder = _adder(role, block, where)
        if adder is None:
            texts.append(text_of(block, "text", where))
            continue
        if texts:
            conversation.say(role, texts)
            texts = []
        adder(conversation, block, where)
    if texts or not content:
        conversation.say(role, texts)


def _adder(role: str, block: Any, place: str) -> Callable[[Conversation, Block, str], None] | None:
    """What adds a block; None for a text."""
    if not isinstance(block, dict):
        raise bad(place, "must be an object with 'type'")
    kind = block.get("type")
    if kind == "text":
        return None
    if not isinstance(kind, str) or kind not in _BLOCKS[role]:
        raise unsupported(place, kind, ("text", *_BLOCKS[role]))
    return _BLOCKS[role][kind]


def _thinking(conversation: Conversation, block: Block, place: str) -> None:
    conversation.think(text_of(block, "thinking", place))


def _hidden(_: Conversation, block: Block, place: str) -> None:
    """Encrypted thoughts cannot be read."""
    text_of(block, "data", place)


def _tool_use(conversation: Conversation, block: Block, place: str) -> None:
    call_id, name = text_of(block, "id", place), text_of(block, "name", place)
    arguments = block.get("input")
    if not name:
        raise bad(f"{place}.name", "must not be empty")
    if not isinstance(arguments, dict):
        raise bad(f"{place}.input", "must be an object")
    conversation.call(call_id, name, arguments)


def _tool_result(conversation: Conversation, block: Block, place: str) -> None:
    texts = texts_of(block.get("content") or "", f"{place}.content", name="block")
    more = {"is_error": True} if block.get("is_error") else {}
    tool = text_of(block, "tool_use_id", place)
    conversation.answer(tool, texts, f"{place}.tool_use_id", **more)


_BLOCKS: dict[str, dict[str, Callable[[Conversation, Block, str], None]]] = {
    "assistant": {
        "redacted_thinking": _hidden,
        "thinking": _thinking,
        "tool_use": _tool_use,
    },
    "system": {},
    "user": {"tool_result": _tool_result},
}
"""By role, the types of blocks that it may have beside texts."""
