"""``/v1/messages`` with Anthropic's official client, and the exact events of its streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from pegboard import RequestOutput
from pegboard.testing.checkpoints import ByteVocabulary, write_scripted_model, write_tiny_model
from pegboard_server_openai.gate import Gate
from pegboard_server_openai.options import AppOptions

TEXT = "Hello, 😀! STOP it"
HI: list[Any] = [{"role": "user", "content": "hi"}]
PROMPT_TOKENS = len("<user>hi\n<assistant>")
ANY_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
USUAL: dict[str, Any] = {"model": "tiny", "max_tokens": 50, "messages": HI}
COLD = {"temperature": 0}


@pytest.fixture(scope="module")
def chatty(start: Callable[..., Any], folders: Callable[[], Path]) -> Any:
    ids = ByteVocabulary().ids(TEXT.encode())
    return start(write_scripted_model(folders(), ids, prompt_tokens=PROMPT_TOKENS))


@pytest.fixture(scope="module")
def slow(start: Callable[..., Any], folders: Callable[[], Path]) -> Any:
    """A step takes 20 ms at least."""
    return start(write_tiny_model(folders()), step_seconds=0.02)


@pytest.fixture(scope="module")
def locked(start: Callable[..., Any], folders: Callable[[], Path]) -> Any:
    options = AppOptions(names=("tiny",), api_keys=("one", "two"), max_body_bytes=10_000)
    return start(write_tiny_model(folders()), app=options)


def client(server: Any, key: str = "any") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0)


def events(server: Any, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream; each is called as its type, and valid in the client's eyes."""
    reply = server.post("/v1/messages", stream=True, **{**USUAL, **COLD, **body})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in reply.text.strip().split("\n\n"):
        name, data = block.split("\n")
        content = json.loads(data.removeprefix("data: "))
        assert name == f"event: {content['type']}"
        if content["type"] != "ping":
            ANY_EVENT.validate_python(content)
        found.append(content)
    return found


def test_a_conversation_is_answered_whole(chatty: Any) -> None:
    with client(chatty) as api:
        found = api.messages.create(**USUAL, extra_body=COLD, metadata={"user_id": "me"})
    Message.model_validate(found.model_dump())
    assert [block.type for block in found.content] == ["text"]
    assert found.content[0].to_dict()["text"] == TEXT
    assert (found.role, found.model, found.type) == ("assistant", "tiny", "message")
    assert (found.stop_reason, found.stop_sequence) == ("end_turn", None)
    assert found.usage.input_tokens + (found.usage.cache_read_input_tokens or 0) == PROMPT_TOKENS
    assert found.usage.output_tokens == len(TEXT.encode()) + 1
    assert found.id.startswith("msg_") and found._request_id


def test_the_usage_counts_cached_tokens_apart(slow: Any) -> None:
    body = {**USUAL, "max_tokens": 2, "messages": [{"role": "user", "content": "x" * 100}]}
    first, second = (slow.post("/v1/messages", **body).json()["usage"] for _ in range(2))
    assert first["cache_read_input_tokens"] == 0 < second["cache_read_input_tokens"]
    for usage in (first, second):
        total = usage["input_tokens"] + usage["cache_read_input_tokens"]
        assert total == len(f"<user>{'x' * 100}\n<assistant>")


def test_a_stream_has_the_events_of_the_api_in_their_order(chatty: Any) -> None:
    found = events(chatty)
    kinds = [event["type"] for event in found]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[3:-3]) == {"content_block_delta"}
    pieces = [event["delta"]["text"] for event in found[3:-3]]
    assert "".join(pieces) == TEXT and not any("\ufffd" in piece for piece in pieces)
    assert found[0]["message"]["content"] == [] and found[0]["message"]["stop_reason"] is None
    usage = found[0]["message"]["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == PROMPT_TOKENS
    assert found[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert found[-2]["usage"]["output_tokens"] == len(TEXT.encode()) + 1


def test_the_clients_stream_helper_puts_the_message_together(chatty: Any) -> None:
    with client(chatty) as api:
        with api.messages.stream(**USUAL, extra_body=COLD) as stream:
            assert "".join(stream.text_stream) == TEXT
            final = stream.get_final_message()
        whole = api.messages.create(**USUAL, extra_body=COLD)
    assert final.content[0].to_dict() == whole.content[0].to_dict()
    assert (final.stop_reason, final.usage.output_tokens) == (
        whole.stop_reason,
        whole.usage.output_tokens,
    )


def test_many_asynchronous_streams_run_together(chatty: Any) -> None:
    async def one(api: anthropic.AsyncAnthropic) -> str:
        async with api.messages.stream(**USUAL, extra_body=COLD) as stream:
            return "".join([text async for text in stream.text_stream])

    async def many() -> list[str]:
        async with anthropic.AsyncAnthropic(base_url=chatty.url, api_key="any") as api:
            return await asyncio.gather(*(one(api) for _ in range(8)))

    assert asyncio.run(many()) == [TEXT] * 8


@pytest.mark.parametrize(
    ("body", "text", "reason", "sequence"),
    [
        ({"stop_sequences": ["it", "STOP"]}, "Hello, 😀! ", "stop_sequence", "STOP"),
        ({"max_tokens": 7}, "Hello, ", "max_tokens", None),
        ({"stop_token_ids": ByteVocabulary().ids(b",")}, "Hello", "end_turn", None),
        ({"stop_sequences": ["Hello"]}, "", "stop_sequence", "Hello"),
    ],
)
def test_the_reason_of_the_end_is_told(
    chatty: Any, body: dict[str, Any], text: str, reason: str, sequence: str | None
) -> None:
    whole = chatty.post("/v1/messages", **{**USUAL, **COLD, **body}).json()
    assert "".join(block["text"] for block in whole["content"]) == text
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
    found = events(chatty, **body)
    pieces = [e["delta"]["text"] for e in found if e["type"] == "content_block_delta"]
    assert "".join(pieces) == text
    assert found[-2]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


def test_a_full_context_is_a_reason_of_its_own(slow: Any) -> None:
    messages = [{"role": "user", "content": "x" * 232}]
    body = {**USUAL, "messages": messages, "max_tokens": 100, "ignore_eos": True}
    found = slow.post("/v1/messages", **body).json()
    assert found["stop_reason"] == "model_context_window_exceeded"
    assert found["usage"]["output_tokens"] < 10


def test_an_answer_that_was_begun_is_continued(chatty: Any) -> None:
    begun = [{"role": "user", "content": ""}, {"role": "assistant", "content": "Sure,"}]
    prompt = "<user>\n<assistant>Sure,"
    assert len(prompt) != PROMPT_TOKENS
    count = chatty.post("/v1/messages/count_tokens", messages=begun).json()
    assert count == {"input_tokens": len(prompt)}


def test_tokens_are_counted_as_they_are_used(chatty: Any) -> None:
    with client(chatty) as api:
        count = api.messages.count_tokens(
            model="tiny", messages=HI, system=[{"type": "text", "text": "Be kind"}]
        )
        assert count.input_tokens == len("<system>Be kind\n") + PROMPT_TOKENS
        found = api.messages.create(**USUAL, system="Be kind")
        assert found.usage.input_tokens == count.input_tokens


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        ({"model": "claude"}, anthropic.NotFoundError, "claude"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "max_tokens=0"),
        ({"max_tokens": -1}, anthropic.BadRequestError, "max_tokens"),
        ({"messages": []}, anthropic.BadRequestError, "at least one message"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
         anthropic.BadRequestError, "no plugin for image"),
        ({"messages": [{"role": "user", "content": "x" * 300}]},
         anthropic.BadRequestError, "context"),
        ({"tools": [{"name": "f", "input_schema": {}}]}, anthropic.BadRequestError, "tool calls"),
        ({"tool_choice": {"type": "any"}}, anthropic.BadRequestError, "tool_choice"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}},
         anthropic.BadRequestError, "thinking"),
        ({"output_config": {"format": {"type": "json_schema"}}},
         anthropic.BadRequestError, "structured outputs"),
        ({"stop_sequences": [""]}, anthropic.BadRequestError, "stop_sequences"),
        ({"temperature": -1}, anthropic.BadRequestError, "temperature"),
        ({"top_k": -7}, anthropic.BadRequestError, "top_k"),
        ({"container": "c"}, anthropic.BadRequestError, "container"),
        ({"chat_template": "{{ raise_exception('no') }}"}, anthropic.BadRequestError, "no"),
    ],
)  # fmt: skip
def test_what_is_not_allowed_is_the_right_exception_and_says_what(
    chatty: Any, body: dict[str, Any], kind: type[anthropic.APIStatusError], says: str
) -> None:
    given = {**USUAL, **body}
    known = {name: given.pop(name) for name in USUAL}
    for stream in (False, True):
        with client(chatty) as api, pytest.raises(kind) as caught:
            api.messages.create(**known, extra_body=given, stream=stream)
        raw: Any = caught.value.body
        assert set(raw) == {"type", "error"} and raw["type"] == "error"
        assert set(raw["error"]) == {"type", "message"}
        assert says in raw["error"]["message"]
        expected = "not_found_error" if kind is anthropic.NotFoundError else "invalid_request_error"
        assert raw["error"]["type"] == expected


def test_max_tokens_and_messages_must_be_there_and_of_their_types(chatty: Any) -> None:
    for field in ("max_tokens", "messages"):
        body = {name: value for name, value in USUAL.items() if name != field}
        for given in (body, {**body, field: "many"}):
            reply = chatty.post("/v1/messages", **given)
            assert reply.status_code == 400
            assert field in reply.json()["error"]["message"]


def test_fields_without_meaning_here_are_taken(chatty: Any) -> None:
    cache = {"cache_control": {"type": "ephemeral"}}
    found = chatty.post(
        "/v1/messages?beta=true",
        **{
            **USUAL,
            **COLD,
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", **cache}]}],
            "system": [],
            "tools": [],
            "thinking": {"type": "disabled"},
            "output_config": {"effort": "low"},
            "service_tier": "auto",
        },
        **cache,
    ).json()
    assert found["content"] == [{"type": "text", "text": TEXT}]


def test_errors_of_guards_and_of_the_router_have_the_form_too(locked: Any) -> None:
    key = {"x-api-key": "two", "anthropic-version": "2023-06-01"}
    path = "/v1/messages"
    replies = [
        (401, "authentication_error", locked.http.post(path, json=USUAL)),
        (401, "authentication_error", locked.http.post(path, json={}, headers={"x-api-key": "o"})),
        (413, "request_too_large", locked.http.post(path, content=b" " * 10_001, headers=key)),
        (404, "not_found_error", locked.http.post(f"{path}/batches", json={}, headers=key)),
        (405, "invalid_request_error", locked.http.get(path, headers=key)),
        (400, "invalid_request_error", locked.http.post(path, content=b"{", headers=key)),
    ]
    for status, kind, reply in replies:
        assert reply.status_code == status
        assert reply.json()["type"] == "error" and reply.json()["error"]["type"] == kind
        assert reply.headers["content-length"] == str(len(reply.content))
    assert replies[0][2].headers["www-authenticate"] == "Bearer"
    other = locked.http.post("/v1/messagesX", json={}, headers=key)
    assert other.status_code == 404 and "type" not in other.json()
    assert locked.http.post(path, json=USUAL, headers=key).status_code == 200
    with client(locked, "one") as api:
        assert api.messages.create(**USUAL).type == "message"
    with client(locked, "wrong") as api, pytest.raises(anthropic.AuthenticationError):
        api.messages.create(**USUAL)


def test_a_server_that_loads_says_so_in_the_form(chatty: Any) -> None:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=Gate())
        async with httpx.AsyncClient(transport=transport, base_url="http://gate") as http:
            return await http.post("/v1/messages", json=USUAL)

    reply = asyncio.run(ask())
    assert reply.status_code == 503 and reply.headers["retry-after"] == "1"
    assert reply.json()["error"]["type"] == "api_error"
    assert "loaded" in reply.json()["error"]["message"]


def test_a_reader_that_leaves_ends_its_request(slow: Any) -> None:
    options = {"ignore_eos": True}
    with client(slow) as api:
        with api.messages.stream(**{**USUAL, "max_tokens": 200}, extra_body=options) as stream:
            next(iter(stream.text_stream))
            assert slow.used_blocks() > 0
        slow.until(lambda: slow.engine.num_live_requests == 0 and slow.used_blocks() == 0)


def test_an_engine_that_dies_ends_the_stream_with_an_error(
    start: Any, folders: Callable[[], Path]
) -> None:
    server = start(write_tiny_model(folders()), step_seconds=0.02)
    body = {**USUAL, "max_tokens": 200}
    with client(server) as api:
        stream = api.messages.create(**body, stream=True, extra_body={"ignore_eos": True})
        while next(stream).type != "content_block_delta":
            pass
        server.engine.die()
        with pytest.raises(anthropic.APIStatusError) as caught:
            list(stream)
        raw: Any = caught.value.body
        assert raw["type"] == "error" and raw["error"]["type"] == "api_error"
        assert "engine" in raw["error"]["message"]
        with pytest.raises(anthropic.APIStatusError) as caught:
            api.messages.create(**USUAL)
    assert caught.value.status_code == 503


@pytest.mark.parametrize(("why", "status"), [("deadline", 504), (None, 503)])
def test_an_answer_that_the_server_ends_is_an_error(
    slow: Any, monkeypatch: pytest.MonkeyPatch, why: str | None, status: int
) -> None:
    add = slow.engine.add

    async def ended(*args: Any, **options: Any) -> Any:
        stream = await add(*args, **options)
        put = stream.put

        def cut(state: Any) -> None:
            whole = isinstance(state, RequestOutput)
            output = state if whole else state.output()
            output.outputs[0].finish_reason, output.outputs[0].stop_reason = "abort", why
            output.finished = True
            put(output if whole else type(state)(output, finished=True))
            stream.close()

        stream.put = cut
        return stream

    monkeypatch.setattr(slow.engine, "add", ended)
    reply = slow.post("/v1/messages", **USUAL)
    assert reply.status_code == status and reply.json()["type"] == "error"
    found = slow.post("/v1/responses", input="hi").json()
    assert found["status"] == "incomplete"
    assert found["incomplete_details"]["reason"] == (why or "abort")
