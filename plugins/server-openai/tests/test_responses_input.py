"""Items as messages, and what is kept of responses."""

from __future__ import annotations

from typing import Any

import pytest

from pegboard_server_openai.conversation import Conversation, opened
from pegboard_server_openai.faults import HttpError
from pegboard_server_openai.responses_input import add_input
from pegboard_server_openai.responses_store import ResponseStore

CALL = {"type": "function_call", "call_id": "c1", "name": "time", "arguments": '{"zone": "UTC"}'}


def messages(given: Any, *system: str) -> list[dict[str, Any]]:
    conversation = Conversation()
    add_input(conversation, given)
    return opened(system, conversation.messages)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_a_text_is_the_users() -> None:
    assert messages("hi") == [user("hi")]


def test_parts_of_a_message_are_its_texts() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    said = {"type": "output_text", "text": "c", "annotations": []}
    found = messages(
        [
            {"role": "user", "content": parts},
            {"type": "message", "role": "assistant", "content": [said], "id": "msg_1"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        ]
    )
    texts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert found == [
        {"role": "user", "content": texts},
        {"role": "assistant", "content": "c"},
        {"role": "assistant", "content": "no"},
    ]


def test_instructions_and_leading_system_messages_are_one() -> None:
    found = messages(
        [
            {"role": "developer", "content": "b"},
            {"role": "system", "content": "c"},
            user("hi"),
            {"role": "developer", "content": "later"},
        ],
        "a",
    )
    texts = [{"type": "text", "text": text} for text in "abc"]
    assert found == [
        {"role": "system", "content": texts},
        user("hi"),
        {"role": "system", "content": "later"},
    ]


def test_a_turn_of_the_assistant_is_one_message() -> None:
    found = messages(
        [
            user("what time?"),
            {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"role": "assistant", "content": "I look."},
            CALL,
            {**CALL, "call_id": "c2"},
            {"type": "function_call_output", "call_id": "c2", "output": "noon"},
            {
                "type": "function_call_output",
                "call_id": "c1",
                "output": [{"type": "input_text", "text": "12"}],
            },
            {"type": "reasoning", "encrypted_content": "x", "summary": []},
            {"role": "assistant", "content": "Noon."},
        ]
    )
    function = {"name": "time", "arguments": '{"zone": "UTC"}'}
    calls = [{"id": name, "type": "function", "function": function} for name in ("c1", "c2")]
    assert found == [
        user("what time?"),
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": calls,
        },
        {"role": "tool", "tool_call_id": "c2", "name": "time", "content": "noon"},
        {"role": "tool", "tool_call_id": "c1", "name": "time", "content": "12"},
        {"role": "assistant", "content": "Noon."},
    ]


@pytest.mark.parametrize(
    ("item", "says"),
    [
        (3, "input[1] must be an object"),
        ({"type": "web_search_call"}, "input[1].type is 'web_search_call'"),
        ({"type": ["message"]}, "input[1].type is ['message']"),
        ({"role": "tool", "content": "x"}, "input[1].role is 'tool'"),
        ({"role": {}, "content": "x"}, "input[1].role is {}"),
        ({"role": "user"}, "input[1].content must be a text or a list of parts"),
        ({"role": "user", "content": [3]}, "input[1].content[0] must be an object"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "no plugin for input_image"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "content[0].text must be a text"),
        ({**CALL, "arguments": "[1]"}, "input[1].arguments must be the text of a JSON object"),
        ({**CALL, "arguments": "{"}, "input[1].arguments must be the text of a JSON object"),
        ({**CALL, "name": ""}, "input[1].name must not be empty"),
        ({**CALL, "call_id": None}, "input[1].call_id must be a text"),
        ({"type": "function_call_output", "call_id": "c9", "output": ""}, "names 'c9'"),
        ({"type": "reasoning", "summary": [{"type": "image"}]}, "input[1].summary[0]"),
    ],
)
def test_what_is_no_item_is_named(item: Any, says: str) -> None:
    with pytest.raises(HttpError) as caught:
        messages([user("hi"), item])
    assert says in str(caught.value)
    assert caught.value.status == 400 and caught.value.param == "input"


def test_calls_of_a_stored_conversation_can_be_answered() -> None:
    before = Conversation()
    add_input(before, [user("hi"), CALL])
    after = Conversation(before.messages)
    add_input(after, [{"type": "function_call_output", "call_id": "c1", "output": "noon"}])
    assert after.messages[-1]["name"] == "time"


def test_the_store_forgets_what_was_not_used_for_longest() -> None:
    store = ResponseStore(max_responses=2)
    store.put("a", {"id": "a"}, [user("a")])
    store.put("b", {"id": "b"}, [user("b")])
    assert store.response("a") == b'{"id":"a"}'
    store.put("c", {"id": "c"}, [user("c")])
    assert store.response("b") is None and store.conversation("a") == [user("a")]
    assert len(store) == 2


def test_the_store_is_bounded_in_bytes() -> None:
    store = ResponseStore(max_bytes=1000)
    for number in range(20):
        store.put(str(number), {}, [user("x" * 200)])
        assert store.size <= 1000
    assert 0 < len(store) < 5
    store.put("large", {}, [user("x" * 2000)])
    assert store.response("large") is None
    for number in range(20):
        store.remove(str(number))
    assert store.size == 0 and not store.remove("1")
