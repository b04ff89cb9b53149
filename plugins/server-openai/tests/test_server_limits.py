"""What bounds a request: numbers of answers, bodies, texts, unknown fields; and what is counted."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from pegboard.testing.checkpoints import write_tiny_model
from pegboard_server_openai.bodies import ChatRequest, CompletionRequest
from pegboard_server_openai.faults import HttpError
from pegboard_server_openai.messages_bodies import MessagesRequest
from pegboard_server_openai.options import AppOptions
from pegboard_server_openai.reading import read_body
from pegboard_server_openai.responses_bodies import ResponsesRequest

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
TEXT = {"prompt": "ab", "max_tokens": 2}
BODIES: dict[type[Any], dict[str, Any]] = {
    ChatRequest: CHAT,
    CompletionRequest: TEXT,
    ResponsesRequest: {"input": "hi"},
    MessagesRequest: CHAT,
}
LIMIT = 20_000


@pytest.fixture(scope="module")
def server(start: Callable[..., Any], folders: Callable[[], Path]) -> Any:
    options = AppOptions(
        names=("tiny",), max_n_sequences=3, max_body_bytes=LIMIT, trust_request_chat_template=True
    )
    return start(write_tiny_model(folders()), app=options, max_model_len=64)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/chat/completions", {**CHAT, "n": 4}, "n"),
        ("/v1/completions", {**TEXT, "n": 4}, "n"),
        ("/v1/completions", {**TEXT, "best_of": 4}, "best_of"),
    ],
)
def test_more_answers_than_the_operator_allows_are_refused(
    server: Any, path: str, body: dict[str, Any], field: str
) -> None:
    reply = server.post(path, **body)
    assert reply.status_code == 400 and reply.json()["error"]["param"] == field
    assert f"{field}=4 is not allowed: at most 3" in reply.json()["error"]["message"]
    assert len(server.post(path, **{**body, field: None, "n": 3}).json()["choices"]) == 3


def refusal(kind: type[Any], **fields: Any) -> str | None:
    """What is said of fields that are added to a good body, after the field's name."""
    raw = json.dumps({**BODIES[kind], **fields}).encode()
    with contextlib.suppress(HttpError):
        read_body(raw, kind)
        return None
    with pytest.raises(HttpError) as caught:
        read_body(raw, kind)
    assert caught.value.status == 400 and caught.value.param in fields
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        (ChatRequest, {"best_of": 3}, "use n"),
        (ChatRequest, {"suffix": "x"}, "fill in the middle"),
        (ChatRequest, {"echo": True}, "/v1/completions"),
        (ChatRequest, {"prompt": "x"}, "use messages"),
        (ChatRequest, {"guided_json": {"a": 1}}, "no plugin for structured outputs"),
        (ChatRequest, {"functions": [{}]}, "no plugin for tool calls"),
        (ChatRequest, {"max_output_tokens": 3}, "use max_tokens"),
        (ChatRequest, {"repeat_penalty": 1.1}, "use repetition_penalty"),
        (ChatRequest, {"add_special_tokens": True}, "/tokenize"),
        (ChatRequest, {"temperatur": 0.3}, "did you mean temperature?"),
        (CompletionRequest, {"max_completion_tokens": 3}, "use max_tokens"),
        (CompletionRequest, {"tools": [{}]}, "no plugin for tool calls"),
        (CompletionRequest, {"messages": [{}]}, "use prompt"),
        (CompletionRequest, {"top_logprobs": 3}, "use logprobs"),
        (CompletionRequest, {"add_special_tokens": False}, "/tokenize"),
        (ResponsesRequest, {"max_tokens": 3}, "use max_output_tokens"),
        (ResponsesRequest, {"n": 2}, "gives one answer"),
        (ResponsesRequest, {"response_format": {"type": "json_object"}}, "text.format"),
        (MessagesRequest, {"stop": ["x"]}, "use stop_sequences"),
        (MessagesRequest, {"max_token": 3}, "did you mean max_tokens?"),
    ],
)
def test_fields_that_would_change_the_answer_are_not_passed_over(
    kind: type[Any], fields: dict[str, Any], said: str
) -> None:
    message = refusal(kind, **fields)
    assert message is not None and said in message


OWN = {
    "metadata": {"a": "b"},
    "store": True,
    "service_tier": "auto",
    "user": "me",
    "prompt_cache_key": "k",
    "safety_identifier": "s",
    "inference_geo": "eu",
}
IDLE = {
    "n": 1,
    "best_of": 1,
    "length_penalty": 1.0,
    "use_beam_search": False,
    "guided_json": None,
    "functions": [],
    "modalities": ["text"],
    "tool_choice": "none",
    "truncate_prompt_tokens": -1,
    "add_special_tokens": None,
    "foreign_field": {"x": 1},
}


@pytest.mark.parametrize("kind", BODIES)
def test_fields_that_ask_for_nothing_are_taken(kind: type[Any]) -> None:
    own = {**OWN, **IDLE}
    if kind is MessagesRequest:  # where it is an object
        del own["tool_choice"]
    assert refusal(kind, **own) is None
    special = kind is CompletionRequest or kind is ResponsesRequest
    assert refusal(kind, add_special_tokens=special) is None


def test_a_body_of_unknown_names_is_read_quickly() -> None:
    names = {f"unheard_{number}" * 3: number for number in range(20_000)}
    assert refusal(ChatRequest, **names) is None


@pytest.mark.parametrize("verbosity", [None, "low"])
def test_hints_reach_the_template(server: Any, verbosity: str | None) -> None:
    template = "{{ reasoning_effort }}-{{ verbosity }}"
    body = {**CHAT, "chat_template": template, "reasoning_effort": "high", "verbosity": verbosity}
    body["return_token_ids"] = True
    ids = server.post("/v1/chat/completions", **body).json()["prompt_token_ids"]
    assert bytes(i - 3 for i in ids).decode() == f"high-{verbosity or ''}"


def test_contents_reach_the_template_as_the_operator_says(
    start: Callable[..., Any], folders: Callable[[], Path]
) -> None:
    options = AppOptions(
        names=("tiny",), chat_template_content_format="openai", trust_request_chat_template=True
    )
    parts = start(write_tiny_model(folders()), app=options, max_model_len=64)
    body = {**CHAT, "chat_template": "{{ messages[0].content[0].text }}", "return_token_ids": True}
    ids = parts.post("/v1/chat/completions", **body).json()["prompt_token_ids"]
    assert bytes(i - 3 for i in ids) == b"hi"
    kwargs = {"chat_template_content_format": "string"}
    reply = parts.post("/v1/chat/completions", **CHAT, chat_template_kwargs=kwargs)
    assert reply.status_code == 400


@pytest.mark.parametrize("encoding", ["gzip", "br", "GZIP , identity"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages"])
def test_an_encoded_body_is_415(server: Any, path: str, encoding: str) -> None:
    headers = {"Content-Encoding": encoding}
    reply = server.http.post(path, content=b"\x1f\x8b...", headers=headers)
    assert reply.status_code == 415 and "Content-Encoding" in reply.json()["error"]["message"]
    plain = server.http.post(path, json=TEXT, headers={"Content-Encoding": "identity"})
    assert plain.status_code != 415


@pytest.mark.parametrize("told", [True, False])
def test_a_client_that_writes_all_of_a_large_body_first_can_read_the_413(
    server: Any, told: bool
) -> None:
    body = b" " * 3_000_000
    host = httpx.URL(server.url)
    for _ in range(3):  # a reset would lose the answer only sometimes
        connection = http.client.HTTPConnection(host.host, host.port, timeout=20)
        whole: Any = body if told else iter([body[:1_000_000]] * 3)
        connection.request("POST", "/v1/completions", whole, encode_chunked=not told)
        reply = connection.getresponse()
        assert reply.status == 413
        assert json.loads(reply.read())["error"]["code"] == "request_too_large"
        connection.close()


def test_a_slash_too_many_leads_to_the_route(server: Any) -> None:
    reply = server.http.get("/version/?a=b")
    assert reply.status_code == 307 and reply.headers["location"] == "../version?a=b"
    models = server.http.get("/v1/models/")
    assert models.status_code == 307 and models.headers["location"] == "../models"
    listed = server.http.get("/v1/models/", follow_redirects=True)
    assert listed.json() == server.http.get("/v1/models").json()
    assert server.http.get("/v1/models//").status_code == 404
    assert server.http.get("/v1/models/tiny/").status_code == 404
    page = server.http.get("/ui/", follow_redirects=True)
    assert page.status_code == 200 and page.url.path == "/ui" and "<html" in page.text
    assert server.http.post("/version/").status_code == 404
    assert server.http.get("/nothing/").status_code == 404
    assert server.http.get("//evil.example/").status_code == 404


def test_texts_that_could_not_fit_are_not_tokenised(server: Any) -> None:
    fits = "a" * 100  # more than the context, which may be why somebody asks
    assert server.post("/tokenize", prompt=fits).json()["count"] == 100
    longest = max(len(fits), 64 * 16)
    reply = server.post("/tokenize", prompt="a" * (longest + 1))
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "prompt"
    assert "64" in reply.json()["error"]["message"]
    assert server.post("/detokenize", tokens=[5] * 64).status_code == 200
    long = server.post("/detokenize", tokens=[5] * 65)
    assert long.status_code == 400 and long.json()["error"]["param"] == "tokens"


WHOLE = "http_request_duration_highr_seconds_count"


def test_requests_are_counted_by_method_status_and_route(server: Any) -> None:
    def counted() -> dict[str, float]:
        text = server.http.get("/metrics").text
        return {name: float(value) for name, value in re.findall(r"^(http_\S+) (\S+)$", text, re.M)}

    before = counted()
    sent = [server.post("/v1/completions", **TEXT) for _ in range(2)]
    server.post("/v1/completions", **TEXT, n=9)
    server.http.get("/v1/models/tiny")
    server.http.get("/no/such/place")
    server.events("/v1/completions", **TEXT)
    server.http.get("/health")
    deadline = time.monotonic() + 10  # an answer is counted when it has ended here, too
    while (after := counted()) and time.monotonic() < deadline:
        if after[WHOLE] - before.get(WHOLE, 0) >= 6:
            break
        time.sleep(0.02)
    new = {name: after[name] - before.get(name, 0) for name in after}

    total = {name: value for name, value in new.items() if name.startswith("http_requests_total")}
    assert {
        tuple(re.findall('"(.*?)"', name)): value for name, value in total.items() if value
    } == {
        ("/v1/completions", "POST", "2xx"): 3,
        ("/v1/completions", "POST", "4xx"): 1,
        ("/v1/models/{name:path}", "GET", "2xx"): 1,
        ("none", "GET", "4xx"): 1,
    }
    assert not any("/health" in name or "/metrics" in name for name in after)
    assert new[WHOLE] == 6
    size = 'http_response_size_bytes_sum{handler="/v1/completions"}'
    assert new[size] >= sum(len(reply.content) for reply in sent)
    assert new['http_request_size_bytes_count{handler="/v1/completions"}'] == 4
