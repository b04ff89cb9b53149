"""``/v1/responses`` with the official client, and the exact events of its streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from pegboard.testing.checkpoints import ByteVocabulary, write_scripted_model, write_tiny_model
from pegboard_server_openai.options import AppOptions

SCRIPT = "Hello, 😀! STOP it"
TEXT = SCRIPT
PROMPT_TOKENS = len("<user>hi\n<assistant>")
OPENING = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
]
CLOSING = [
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]
ANY_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@pytest.fixture(scope="module")
def chatty(start: Callable[..., Any], folders: Callable[[], Path]) -> Any:
    ids = ByteVocabulary().ids(SCRIPT.encode())
    options = AppOptions(
        names=("tiny", "other"), enable_response_store=True, trust_request_chat_template=True
    )
    return start(write_scripted_model(folders(), ids, prompt_tokens=PROMPT_TOKENS), app=options)


@pytest.fixture(scope="module")
def tiny(start: Callable[..., Any], folders: Callable[[], Path]) -> Any:
    """Keeps nothing; a step takes 20 ms at least."""
    return start(write_tiny_model(folders()), step_seconds=0.02)


def client(server: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)


def events(server: Any, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream; each is called as its type, and valid in the client's eyes."""
    reply = server.post("/v1/responses", stream=True, **body)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in reply.text.strip().split("\n\n"):
        name, data = block.split("\n")
        content = json.loads(data.removeprefix("data: "))
        assert name == f"event: {content['type']}"
        ANY_EVENT.validate_python(content)
        found.append(content)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def test_a_text_is_answered_whole(chatty: Any) -> None:
    with client(chatty) as api:
        found = api.responses.create(
            model="tiny", input="hi", temperature=0, metadata={"a": "b"}, user="me"
        )
    Response.model_validate(found.model_dump())
    assert found.output_text == TEXT
    assert found.status == "completed" and found.incomplete_details is None
    assert (found.model, found.metadata, found.user) == ("tiny", {"a": "b"}, "me")
    assert found.temperature == 0 and found.tools == [] and found.error is None
    usage = found.usage
    assert usage is not None and usage.input_tokens == PROMPT_TOKENS
    made = len(TEXT.encode()) + 1
    assert (usage.output_tokens, usage.total_tokens) == (made, PROMPT_TOKENS + made)
    assert str(found.output[0].id).startswith("msg_") and found.id.startswith("resp_")


def test_the_usage_tells_cached_tokens(tiny: Any) -> None:
    body = {"input": "x" * 100, "max_output_tokens": 2}
    first, second = (tiny.post("/v1/responses", **body).json()["usage"] for _ in range(2))
    assert first["input_tokens_details"]["cached_tokens"] == 0
    assert 0 < second["input_tokens_details"]["cached_tokens"] < second["input_tokens"]


def test_a_stream_has_the_events_of_the_api_in_their_order(chatty: Any) -> None:
    found = events(chatty, input="hi", temperature=0)
    kinds = [event["type"] for event in found]
    deltas = kinds[len(OPENING) : -len(CLOSING) - 1]
    assert kinds[: len(OPENING)] == OPENING
    assert set(deltas) == {"response.output_text.delta"}
    assert kinds[-len(CLOSING) - 1 :] == [*CLOSING, "response.completed"]
    pieces = [event["delta"] for event in found if "delta" in event]
    assert "".join(pieces) == TEXT and not any("\ufffd" in piece for piece in pieces)
    last = found[-1]["response"]
    assert last["output"] == [found[-2]["item"]]
    assert last["output"][0]["content"] == [found[-3]["part"]]
    assert found[-4]["text"] == found[-3]["part"]["text"] == TEXT
    assert found[0]["response"]["status"] == found[1]["response"]["status"] == "in_progress"
    assert found[0]["response"]["id"] == last["id"] and last["status"] == "completed"
    assert len({e["item_id"] for e in found if "item_id" in e} | {found[2]["item"]["id"]}) == 1
    whole = chatty.post("/v1/responses", input="hi", temperature=0).json()
    for fresh in ("id", "created_at", "completed_at", "output"):
        del whole[fresh], last[fresh]
    assert whole == last


def test_the_clients_stream_helper_puts_the_response_together(chatty: Any) -> None:
    with (
        client(chatty) as api,
        api.responses.stream(model="tiny", input="hi", temperature=0) as stream,
    ):
        snapshots = [e.snapshot for e in stream if e.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert snapshots[-1] == final.output_text == TEXT


def test_many_asynchronous_streams_run_together(chatty: Any) -> None:
    async def one(api: openai.AsyncOpenAI) -> str:
        stream = await api.responses.create(model="tiny", input="hi", temperature=0, stream=True)
        return "".join([e.delta async for e in stream if e.type == "response.output_text.delta"])

    async def many() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{chatty.url}/v1", api_key="any") as api:
            return await asyncio.gather(*(one(api) for _ in range(8)))

    assert asyncio.run(many()) == [TEXT] * 8


def test_an_answer_that_is_cut_is_incomplete(chatty: Any) -> None:
    found = chatty.post("/v1/responses", input="hi", temperature=0, max_output_tokens=7).json()
    assert found["status"] == "incomplete" and found["completed_at"] is None
    assert found["incomplete_details"] == {"reason": "max_output_tokens"}
    assert found["output"][0]["status"] == "incomplete"
    assert found["output"][0]["content"][0]["text"] == TEXT[:7]
    last = events(chatty, input="hi", temperature=0, max_output_tokens=9)[-1]
    assert last["type"] == "response.incomplete"
    # The emoji's first two bytes are no text yet.
    assert last["response"]["output"][0]["content"][0]["text"].startswith("Hello, ")


def test_stop_strings_end_an_answer(chatty: Any) -> None:
    found = events(chatty, input="hi", temperature=0, stop=["STOP"])
    assert found[-1]["type"] == "response.completed"
    text = TEXT.partition("STOP")[0]
    assert "".join(event["delta"] for event in found if "delta" in event) == text


def test_log_probabilities_come_if_they_are_included(chatty: Any) -> None:
    wanted = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    body = {"input": "hi", "temperature": 0, **wanted}
    part = chatty.post("/v1/responses", **body).json()["output"][0]["content"][0]
    assert bytes(b for s in part["logprobs"][:-1] for b in s["bytes"]) == TEXT.encode()
    assert {len(score["top_logprobs"]) for score in part["logprobs"]} == {2}
    found = events(chatty, **body)
    scores = [s for e in found if e["type"].endswith("delta") for s in e["logprobs"]]
    assert scores == found[-4]["logprobs"] == part["logprobs"]
    plain = chatty.post("/v1/responses", input="hi", temperature=0, top_logprobs=2).json()
    assert plain["output"][0]["content"][0]["logprobs"] == []


@pytest.mark.parametrize(
    ("body", "kind", "param"),
    [
        ({"model": "gpt"}, openai.NotFoundError, "model"),
        ({"background": True}, openai.BadRequestError, "background"),
        ({"conversation": "conv_1"}, openai.BadRequestError, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, openai.BadRequestError, "prompt"),
        ({"tools": [{"type": "web_search"}]}, openai.BadRequestError, "tools"),
        ({"tool_choice": "required"}, openai.BadRequestError, "tool_choice"),
        ({"truncation": "auto"}, openai.BadRequestError, "truncation"),
        ({"text": {"format": {"type": "json_object"}}}, openai.BadRequestError, "text"),
        ({"text": {"format": "json"}}, openai.BadRequestError, "text"),
        ({"include": ["all"]}, openai.BadRequestError, "include"),
        ({"max_output_tokens": 0}, openai.BadRequestError, "max_output_tokens"),
        ({"max_output_tokens": 2**40}, openai.BadRequestError, "max_output_tokens"),
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"metadata": {"k": "v" * 513}}, openai.BadRequestError, "metadata"),
        ({"metadata": {"k": 1}}, openai.BadRequestError, "metadata"),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 21},
         openai.BadRequestError, "top_logprobs"),
        ({"input": []}, openai.BadRequestError, "input"),
        ({"input": "x" * 300}, openai.BadRequestError, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         openai.BadRequestError, "input"),
        ({"previous_response_id": "resp_1"}, openai.BadRequestError, "previous_response_id"),
        ({"chat_template": "{{ raise_exception('no') }}"}, openai.BadRequestError, "input"),
    ],
)  # fmt: skip
def test_what_is_not_allowed_is_the_right_exception_and_names_the_field(
    chatty: Any, body: dict[str, Any], kind: type[openai.APIStatusError], param: str
) -> None:
    given = {"model": "tiny", "input": "hi", **body}
    known = {name: given.pop(name) for name in ("model", "input")}
    for stream in (False, True):
        with client(chatty) as api, pytest.raises(kind) as caught:
            api.responses.create(**known, extra_body=given, stream=stream)
        assert caught.value.param == param, caught.value


def test_fields_without_meaning_here_are_taken(chatty: Any) -> None:
    found = chatty.post(
        "/v1/responses",
        input=[{"role": "user", "content": "hi"}],
        temperature=0,
        instructions=None,
        tools=[],
        include=["reasoning.encrypted_content"],
        reasoning={"effort": "low"},
        text={"verbosity": "low"},
        service_tier="auto",
        prompt_cache_key="k",
        stream_options=None,
        parallel_tool_calls=False,
        truncation="disabled",
    ).json()
    assert found["output"][0]["content"][0]["text"] == TEXT
    assert found["reasoning"] == {"effort": "low", "summary": None}
    assert found["text"] == {"format": {"type": "text"}, "verbosity": "low"}
    assert found["prompt_cache_key"] == "k" and found["parallel_tool_calls"] is False


def test_a_stored_response_is_read_continued_and_deleted(chatty: Any) -> None:
    with client(chatty) as api:
        first = api.responses.create(model="tiny", input="hi", temperature=0)
        assert api.responses.retrieve(first.id) == first
        count = api.responses.input_tokens.count(
            model="tiny", input="go on", previous_response_id=first.id, instructions="Be kind"
        )
        history = f"<system>Be kind\n<user>hi\n<assistant>{TEXT}\n<user>go on\n<assistant>"
        assert count.input_tokens == len(history.encode())
        second = api.responses.create(
            model="tiny", input="go on", previous_response_id=first.id, max_output_tokens=1
        )
        assert second.previous_response_id == first.id
        assert second.usage is not None
        assert second.usage.input_tokens == len(history.replace("<system>Be kind\n", "").encode())
        with pytest.raises(openai.BadRequestError, match="background"):
            api.responses.cancel(first.id)
        api.responses.delete(first.id)
        for again in (api.responses.retrieve, api.responses.delete, api.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                again(first.id)
        with pytest.raises(openai.BadRequestError) as caught:
            api.responses.create(model="tiny", input="x", previous_response_id=first.id)
        assert caught.value.code == "previous_response_not_found"


def test_a_stream_is_stored_at_its_end_and_one_that_asks_not_to_be_is_not(chatty: Any) -> None:
    kept = events(chatty, input="hi", temperature=0)[-1]["response"]
    assert chatty.http.get(f"/v1/responses/{kept['id']}").json() == kept
    assert chatty.http.get(f"/v1/responses/{kept['id']}?stream=true").status_code == 400
    passing = chatty.post("/v1/responses", input="hi", temperature=0, store=False).json()
    assert passing["store"] is False
    assert chatty.http.get(f"/v1/responses/{passing['id']}").status_code == 404


def test_the_input_of_a_stored_response_is_told_page_by_page(chatty: Any) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    answer = {"type": "function_call_output", "call_id": "c", "output": "3", "id": "mine"}
    with client(chatty) as api:
        one = api.responses.create(model="tiny", input="hi", temperature=0)
        [item] = api.responses.input_items.list(one.id)
        assert item.type == "message" and item.role == "user"
        assert [part.type for part in item.content] == ["input_text"]
        given: Any = [{"role": "user", "content": "hi"}, call, answer]
        many = api.responses.create(model="tiny", input=given, max_output_tokens=1)
        found = list(api.responses.input_items.list(many.id, order="asc", limit=2))
        assert [item.type for item in found] == ["message", "function_call", "function_call_output"]
        assert found[2].id == "mine" and len({item.id for item in found}) == 3
        page = api.responses.input_items.list(many.id, limit=1)
        assert [item.id for item in page.data] == ["mine"] and page.has_more
        for odd in ("limit=0", "limit=101", "order=up", "after=nothing"):
            reply = chatty.http.get(f"/v1/responses/{many.id}/input_items?{odd}")
            assert reply.status_code == 400 and reply.json()["error"]["param"] == odd.split("=")[0]
        api.responses.delete(many.id)
        with pytest.raises(openai.NotFoundError):
            api.responses.input_items.list(many.id)


def test_nothing_is_stored_unless_the_operator_says_so(tiny: Any) -> None:
    found = tiny.post("/v1/responses", input="hi", store=True, max_output_tokens=1).json()
    assert found["store"] is False
    with client(tiny) as api:
        with pytest.raises(openai.NotFoundError, match="enable-response-store"):
            api.responses.retrieve(found["id"])
        with pytest.raises(openai.NotFoundError, match="enable-response-store"):
            api.responses.input_items.list(found["id"])
        with pytest.raises(openai.BadRequestError, match="enable-response-store"):
            api.responses.create(model="tiny", input="x", previous_response_id=found["id"])


def test_a_reader_that_leaves_ends_its_request(tiny: Any) -> None:
    with client(tiny) as api:
        stream = api.responses.create(
            model="tiny", input="ab", max_output_tokens=200, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        for event in stream:
            if event.type == "response.output_text.delta":
                break
        assert tiny.used_blocks() > 0
        stream.close()
    tiny.until(lambda: tiny.engine.num_live_requests == 0 and tiny.used_blocks() == 0)


def test_an_engine_that_dies_fails_the_response(start: Any, folders: Callable[[], Path]) -> None:
    server = start(write_tiny_model(folders()), step_seconds=0.02)
    with client(server) as api:
        stream = api.responses.create(
            model="tiny", input="ab", max_output_tokens=200, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        seen = []
        for event in stream:
            seen.append(event)
            if event.type == "response.output_text.delta":
                server.engine.die()
        last = seen[-1]
        assert last.type == "response.failed" and last.sequence_number == len(seen) - 1
        assert last.response.status == "failed" and last.response.error is not None
        assert last.response.error.code == "server_error"
        assert "engine" in last.response.error.message
        text = "".join(e.delta for e in seen if e.type == "response.output_text.delta")
        assert last.response.output_text.startswith(text)
        with pytest.raises(openai.InternalServerError) as caught:
            api.responses.create(model="tiny", input="ab")
    assert caught.value.status_code == 503


def test_request_ids_come_back_and_the_routes_describe_themselves(chatty: Any) -> None:
    reply = chatty.http.post(
        "/v1/responses", json={"input": "hi"}, headers={"X-Request-Id": "mine"}
    )
    assert reply.headers["x-request-id"] == "mine"
    assert "mine" not in reply.json()["id"], "ids of stored responses must not be guessed"
    described = chatty.http.get("/openapi.json").json()
    assert "/v1/responses/{name}" in described["paths"]
    assert (
        "max_output_tokens" in described["components"]["schemas"]["ResponsesRequest"]["properties"]
    )
