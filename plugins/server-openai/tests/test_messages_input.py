"""Anthropic's messages and blocks as the messages that chat templates know."""

from __future__ import annotations

from typing import Any

import pytest

from pegboard_server_openai.faults import HttpError
from pegboard_server_openai.messages_bodies import CountTokensRequest
from pegboard_server_openai.messages_input import chat_messages, goes_on

USE = {"type": "tool_use", "id": "t1", "name": "time", "input": {"zone": "UTC"}}
RESULT = {"type": "tool_result", "tool_use_id": "t1"}


def messages(*given: Any, system: Any = None) -> list[dict[str, Any]]:
    return chat_messages(CountTokensRequest(messages=list(given), system=system))


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def test_the_systems_text_comes_first_and_takes_leading_messages_in() -> None:
    assert messages(user("hi"), system="a")[0] == {"role": "system", "content": "a"}
    found = messages({"role": "system", "content": "c"}, user("hi"), system=[text("a"), text("b")])
    assert found == [{"role": "system", "content": [text("a"), text("b"), text("c")]}, user("hi")]
    assert messages(user("hi"), system="") == [user("hi")]


def test_a_turn_with_tools_is_one_message_and_results_are_the_tools() -> None:
    found = messages(
        user("what time?"),
        assistant(
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "redacted_thinking", "data": "x"},
            text("I look."),
            USE,
            {**USE, "id": "t2"},
        ),
        user(
            [
                {**RESULT, "content": "noon"},
                {**RESULT, "tool_use_id": "t2", "content": [text("no"), text("clock")]},
                text("and now?"),
            ]
        ),
        assistant(USE),
        user([{**RESULT, "is_error": True}]),
    )
    function = {"name": "time", "arguments": {"zone": "UTC"}}
    calls = [{"id": name, "type": "function", "function": function} for name in ("t1", "t2")]
    tool = {"role": "tool", "name": "time"}
    assert found == [
        user("what time?"),
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": calls,
        },
        {**tool, "tool_call_id": "t1", "content": "noon"},
        {**tool, "tool_call_id": "t2", "content": [text("no"), text("clock")]},
        user("and now?"),
        {"role": "assistant", "content": None, "tool_calls": calls[:1]},
        {**tool, "tool_call_id": "t1", "content": "", "is_error": True},
    ]


def test_an_answer_goes_on_where_the_last_message_is_its_beginning() -> None:
    assert goes_on(messages(user("hi"), {"role": "assistant", "content": "Sure"}))
    assert goes_on(messages(user("hi"), assistant(text("Sure"), text("ly"))))
    assert not goes_on(messages(user("hi")))
    assert not goes_on(messages(user("hi"), assistant(text("Sure"), USE)))
    assert not goes_on(messages(user("hi"), assistant()))
    assert not goes_on(messages(assistant({"type": "redacted_thinking", "data": "x"})))


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("hi", "messages[1] must be an object"),
        ({"role": "tool", "content": "x"}, "messages[1].role is 'tool'"),
        ({"role": ["user"], "content": "x"}, "messages[1].role is ['user']"),
        ({"role": "user"}, "messages[1].content must be a text or a list of blocks"),
        (user(["hi"]), "messages[1].content[0] must be an object"),
        (user([{"type": "text"}]), "messages[1].content[0].text must be a text"),
        (user([{"type": "image"}]), "no plugin for image is installed"),
        (user([{"type": "document"}]), "no plugin for document is installed"),
        (user([USE]), "messages[1].content[0] is of type 'tool_use'"),
        (user([{"type": {}}]), "messages[1].content[0] is of type {}"),
        (assistant({**RESULT, "content": ""}), "is of type 'tool_result'"),
        (user([{**RESULT, "content": "x"}]), "no tool was called with that id"),
        (user([{**RESULT, "content": [{"type": "image"}]}]), "content[0].content[0] is of type"),
        (assistant({**USE, "input": "{}"}), "messages[1].content[0].input must be an object"),
        (assistant({**USE, "name": ""}), "messages[1].content[0].name must not be empty"),
        (assistant({**USE, "id": 3}), "messages[1].content[0].id must be a text"),
        ({"role": "system", "content": [USE]}, "is of type 'tool_use'"),
    ],
)
def test_what_is_no_message_is_named(message: Any, says: str) -> None:
    with pytest.raises(HttpError) as caught:
        messages(user("hi"), message)
    assert says in str(caught.value)
    assert caught.value.status == 400 and caught.value.param == "messages"


def test_the_systems_blocks_are_texts() -> None:
    with pytest.raises(HttpError, match=r"system\[0\] is of type 'image'"):
        messages(user("hi"), system=[{"type": "image"}])
