"""Checking a conversation and bringing it into the form that a template expects.

The policy, one for all templates:

* A message is a mapping with a `role`. Values must be plain data (text, numbers, booleans, null,
  lists, mappings); null entries are left out, content apart.
* Content that is null or absent reaches a template that asks for null (and not for empty text) as
  null, any other as empty text.
* A list of text parts reaches a template that loops over parts as ``{"type": "text", "text": …}``
  mappings, any other as one text, the parts joined by line breaks. A template that can only loop
  gets plain text as one part.
* Arguments of tool calls in the history reach the template as mappings, also when they were given
  as JSON text. Null and empty text mean no arguments. Printed or joined to text, they give their
  JSON text (`ToolArguments`).
* Reasoning under any of the names `reasoning_content`, `thinking`, `reasoning` is there as the
  first two as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pegboard.errors import RequestError
from pegboard.text.template_facts import ContentFacts

__all__ = ["ToolArguments", "plain_data", "prepare_messages"]

_MAX_DEPTH = 64
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Type of a text part, and the key that holds its text."""
_REASONING = ("reasoning_content", "thinking", "reasoning")


class ToolArguments(dict[str, Any]):
    """Arguments of a tool call: a mapping that prints, and joins to text, as JSON.

    Some templates write ``arguments | tojson``, some ``arguments.items()``, some just
    ``arguments``, meaning JSON text.
    """

    def __init__(self, values: Mapping[str, Any], text: str | None = None) -> None:
        super().__init__(values)
        self._text = json.dumps(self, ensure_ascii=False) if text is None else text

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: Any) -> str:
        return self._text + other if isinstance(other, str) else NotImplemented

    def __radd__(self, other: Any) -> str:
        return other + self._text if isinstance(other, str) else NotImplemented


def prepare_messages(messages: Any, facts: ContentFacts) -> list[dict[str, Any]]:
    """The conversation as the template gets it: fresh, plain data.

    Raises `RequestError` naming the offending place.
    """
    if not isinstance(messages, (list, tuple)) or not messages:
        raise _bad("messages", messages, "a list of at least one message")
    return [
        _message(message, f"messages[{place}]", facts) for place, message in enumerate(messages)
    ]


def plain_data(value: Any, place: str, depth: int = 0) -> Any:
    """A copy made of nothing but JSON's types.

    Raises `RequestError` naming `place` for anything else.
    """
    if value is None or isinstance(value, bool):
        return value
    if depth > _MAX_DEPTH:
        raise RequestError(
            f"{place} is nested more than {_MAX_DEPTH} levels deep", field=_field(place)
        )
    if isinstance(value, Mapping):
        return {
            str(key): plain_data(item, f"{place}.{key}", depth + 1) for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [plain_data(item, f"{place}[{i}]", depth + 1) for i, item in enumerate(value)]
    # Subclasses may bring methods along that the sandbox does not know: make base types of them.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise _bad(place, value, "text, a number, true, false, null, a list or a mapping")


def _message(message: Any, place: str, facts: ContentFacts) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _bad(place, message, "a mapping with 'role' and 'content'")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise _bad(f"{place}.role", role, "a text such as 'user'")
    prepared: dict[str, Any] = {"role": str.__str__(role)}
    prepared["content"] = _content(message.get("content"), f"{place}.content", facts)
    for key, value in message.items():
        if key in prepared or value is None:
            continue
        where = f"{place}.{key}"
        prepared[str(key)] = (
            _tool_calls(value, where) if key == "tool_calls" else plain_data(value, where)
        )
    return _with_reasoning(prepared)


def _content(content: Any, place: str, facts: ContentFacts) -> Any:
    if content is None:
        return None if facts.tells_null else ""
    if isinstance(content, str):
        text = str.__str__(content)
        return text if facts.takes_text else [{"type": "text", "text": text}]
    if not isinstance(content, (list, tuple)):
        raise _bad(place, content, "a text, null or a list of parts")
    texts = [_part_text(part, f"{place}[{i}]") for i, part in enumerate(content)]
    if facts.takes_parts:
        return [{"type": "text", "text": text} for text in texts]
    return "\n".join(texts)


def _part_text(part: Any, place: str) -> str:
    if isinstance(part, str):
        return str.__str__(part)
    if not isinstance(part, Mapping):
        raise _bad(place, part, "a mapping with 'type' and 'text'")
    key = _TEXT_PARTS.get(str(part.get("type")))
    if key is None:
        raise _bad(
            f"{place}.type",
            part.get("type"),
            f"one of {', '.join(sorted(_TEXT_PARTS))} (this model reads text)",
        )
    text = part.get(key)
    if not isinstance(text, str):
        raise _bad(f"{place}.{key}", text, "a text")
    return str.__str__(text)


def _tool_calls(calls: Any, place: str) -> list[dict[str, Any]]:
    if not isinstance(calls, (list, tuple)):
        raise _bad(place, calls, "a list of tool calls")
    return [_tool_call(call, f"{place}[{i}]") for i, call in enumerate(calls)]


def _tool_call(call: Any, place: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise _bad(place, call, "a mapping with 'function'")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise _bad(f"{place}.function.name", name, "the name of a function")
    prepared: dict[str, Any] = plain_data({k: v for k, v in call.items() if k != "function"}, place)
    prepared["function"] = plain_data(
        {k: v for k, v in function.items() if k != "arguments"}, f"{place}.function"
    )
    arguments = _arguments(function.get("arguments"), f"{place}.function.arguments")
    prepared["function"]["arguments"] = arguments
    return prepared


def _arguments(arguments: Any, place: str) -> ToolArguments:
    text = None
    if isinstance(arguments, str):
        text = arguments.strip()
        try:
            arguments = json.loads(text) if text else None
        except (ValueError, RecursionError) as error:
            raise _bad(place, arguments, f"a JSON object ({error})") from error
    if arguments is None:
        return ToolArguments({})
    if not isinstance(arguments, Mapping):
        raise _bad(place, arguments, "a JSON object or a mapping")
    return ToolArguments(plain_data(arguments, place), text)


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    given = next((message[name] for name in _REASONING if name in message), None)
    if given is None:
        return message
    return {"thinking": given, **message, "reasoning_content": given}


def _bad(place: str, value: Any, allowed: str) -> RequestError:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    return RequestError(f"{place}={shown} is not allowed: {allowed}", field=_field(place))


def _field(place: str) -> str:
    """The request's parameter that a place such as ``messages[1].role`` lies in."""
    return place.partition("[")[0].partition(".")[0]
