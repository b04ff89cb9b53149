"""The official client, keys, limits, clients that leave, and a server without an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from pegboard.api.endpoint import Endpoint, EndpointContext, Route
from pegboard.errors import DuplicateError, PluginError
from pegboard.testing.boards import board_with
from pegboard.testing.checkpoints import ByteVocabulary, write_scripted_model, write_tiny_model
from pegboard_server_openai.app import collect_routes, make_routes
from pegboard_server_openai.gate import Gate
from pegboard_server_openai.options import AppOptions

SCRIPT = "Hello, 😀!".encode()
MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]
PROMPT_TOKENS = len("<user>hi\n<assistant>")
LONG = {"prompt": "ab", "max_tokens": 200, "ignore_eos": True}


@pytest.fixture(scope="module")
def chatty(start: Callable[..., Any], folders: Callable[[], Path]) -> Any:
    ids = ByteVocabulary().ids(SCRIPT)
    return start(write_scripted_model(folders(), ids, prompt_tokens=PROMPT_TOKENS))


@pytest.fixture(scope="module")
def slow(start: Callable[..., Any], folders: Callable[[], Path]) -> Any:
    """A step takes 20 ms at least."""
    return start(write_tiny_model(folders()), step_seconds=0.02)


@pytest.fixture(scope="module")
def locked(start: Callable[..., Any], folders: Callable[[], Path]) -> Any:
    options = AppOptions(names=("tiny",), api_keys=("one", "two"), max_body_bytes=10_000)
    return start(write_tiny_model(folders()), app=options)


def client(server: Any, key: str = "any") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def test_the_official_client_chats_completes_and_streams(chatty: Any) -> None:
    with client(chatty) as api:
        whole = api.chat.completions.create(model="tiny", messages=MESSAGES, temperature=0)
        assert whole.choices[0].message.content == SCRIPT.decode()
        assert whole.usage is not None and whole.usage.prompt_tokens == PROMPT_TOKENS
        pieces = api.chat.completions.create(
            model="tiny", messages=MESSAGES, temperature=0, stream=True
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in pieces)
        assert text == SCRIPT.decode()
        plain = api.completions.create(model="other", prompt="x" * PROMPT_TOKENS, temperature=0)
        assert plain.model == "other" and plain.choices[0].text == SCRIPT.decode()
        assert [card.id for card in api.models.list()] == ["tiny", "other"]
        assert api.models.retrieve("other").id == "other"


def test_the_official_clients_stream_helper_puts_the_answer_together(chatty: Any) -> None:
    options: Any = {"include_usage": True}
    with (
        client(chatty) as api,
        api.chat.completions.stream(
            model="tiny", messages=MESSAGES, temperature=0, stream_options=options
        ) as stream,
    ):
        final = stream.get_final_completion()
    assert final.choices[0].message.content == SCRIPT.decode()
    assert final.choices[0].finish_reason == "stop"
    assert final.usage is not None and final.usage.completion_tokens == len(SCRIPT) + 1


def test_many_asynchronous_streams_run_together(chatty: Any) -> None:
    async def one(api: openai.AsyncOpenAI) -> str:
        stream = await api.chat.completions.create(
            model="tiny", messages=MESSAGES, temperature=0, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def many() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{chatty.url}/v1", api_key="any") as api:
            return await asyncio.gather(*(one(api) for _ in range(16)))

    assert asyncio.run(many()) == [SCRIPT.decode()] * 16


@pytest.mark.parametrize(
    ("body", "kind", "param"),
    [
        ({"model": "gpt"}, openai.NotFoundError, "model"),
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"max_tokens": "many"}, openai.BadRequestError, "max_tokens"),
        ({"n": 2, "temperature": 0}, openai.BadRequestError, "n"),
        ({"top_logprobs": 2}, openai.BadRequestError, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, openai.BadRequestError, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, openai.BadRequestError, "top_logprobs"),
        ({"logit_bias": {"x": 1}}, openai.BadRequestError, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, openai.BadRequestError, "logit_bias"),
        ({"tools": [{"type": "function"}]}, openai.BadRequestError, "tools"),
        ({"response_format": {"type": "json_object"}}, openai.BadRequestError, "response_format"),
        ({"guided_json": {"type": "object"}}, openai.BadRequestError, "guided_json"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         openai.BadRequestError, "messages"),
        ({"stream_options": {}}, openai.BadRequestError, "stream_options"),
        ({"chat_template_kwargs": {"tools": []}}, openai.BadRequestError, "chat_template_kwargs"),
        ({"chat_template": "{{ raise_exception('no') }}"}, openai.BadRequestError, "messages"),
        ({"priority": 3}, openai.BadRequestError, "priority"),
    ],
)  # fmt: skip
def test_what_is_not_allowed_is_the_right_exception_and_names_the_field(
    chatty: Any, body: dict[str, Any], kind: type[openai.APIStatusError], param: str
) -> None:
    given = {"model": "tiny", "messages": MESSAGES, **body}
    known = {name: given.pop(name) for name in ("model", "messages")}
    with client(chatty) as api, pytest.raises(kind) as caught:
        api.chat.completions.create(**known, extra_body=given)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("body", "param"),
    [({"suffix": "x"}, "suffix"), ({"best_of": 3}, "best_of"), ({"logprobs": -1}, "logprobs"),
     ({"prompt": [1, 9999]}, "prompt"), ({"prompt": [1.5]}, "prompt")],
)  # fmt: skip
def test_completions_refuse_by_name(chatty: Any, body: dict[str, Any], param: str) -> None:
    reply = chatty.post("/v1/completions", **{"prompt": "x", **body})
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param


def test_nulls_and_unknown_fields_are_passed_over(chatty: Any) -> None:
    body = {"temperature": 0, "stop": None, "tools": None, "n": None, "store": True, "user": "me"}
    assert chatty.post("/v1/chat/completions", messages=MESSAGES, **body).status_code == 200


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"prompt":"\\ud800"}', b"\xff", b"null"])
def test_a_body_that_is_no_object_is_refused(chatty: Any, raw: bytes) -> None:
    reply = chatty.http.post("/v1/completions", content=raw)
    assert reply.status_code == 400 and "error" in reply.json()


@pytest.mark.parametrize("depth", [97, 1000, 100_000])
def test_deep_bodies_are_refused(chatty: Any, depth: int) -> None:
    raw = b'{"prompt":"a","user_data":' + b"[" * depth + b"]" * depth + b"}"
    reply = chatty.http.post("/v1/completions", content=raw)
    assert reply.status_code == 400 and "deep" in reply.json()["error"]["message"]


def test_keys_guard_everything_but_health_and_version(locked: Any) -> None:
    http = locked.http
    for path in ("/health", "/ping", "/version"):
        assert http.get(path).status_code == 200
    for path in ("/v1/models", "/load", "/plugins", "/docs", "/openapi.json", "/nothing",
                 "/HEALTH/../v1/models", "//health", "/health//", "/Health", "/load/",
                 "/v1/models/", "/v1/models?x=/health", "/health%2f..%2fv1/models"):  # fmt: skip
        reply = http.get(path)
        assert reply.status_code == 401, path
        assert reply.json()["error"]["code"] == "invalid_api_key"
    assert http.get("/health/").headers["location"] == "../health"
    assert http.post("/health").status_code == 401
    for key in ("one", "two"):
        reply = http.get("/v1/models", headers={"Authorization": f"Bearer {key}"})
        assert reply.status_code == 200
    for bad in ("Bearer", "Bearer one two", "Bearer onE", "Basic one", "one"):
        assert http.get("/v1/models", headers={"Authorization": bad}).status_code == 401, bad
    with client(locked, "wrong") as api, pytest.raises(openai.AuthenticationError):
        api.models.list()


def test_large_bodies_are_refused_told_or_not(locked: Any) -> None:
    headers = {"Authorization": "Bearer one"}
    whole = locked.http.post("/v1/completions", content=b" " * 10_001, headers=headers)
    pieces = (b" " * 1000 for _ in range(11))
    unsaid = locked.http.post("/v1/completions", content=pieces, headers=headers)
    for reply in (whole, unsaid):
        assert reply.status_code == 413
        assert reply.json()["error"]["code"] == "request_too_large"


def test_what_is_not_there_is_404_and_405_in_openais_form(chatty: Any) -> None:
    assert chatty.http.get("/v1/nothing").json()["error"]["type"] == "not_found_error"
    assert chatty.http.get("/v1/completions").status_code == 405


def test_text_and_ids_go_round(chatty: Any) -> None:
    found = chatty.post("/tokenize", prompt="a😀", return_token_strs=True).json()
    assert found["count"] == 5 == len(found["token_strs"]) and found["max_model_len"] == 256
    assert chatty.post("/detokenize", tokens=found["tokens"]).json() == {"prompt": "a😀"}
    assert chatty.post("/detokenize", tokens=[99999]).status_code == 400
    assert chatty.post("/tokenize").status_code == 400
    chat = chatty.post("/tokenize", messages=MESSAGES).json()
    assert chat["count"] == PROMPT_TOKENS
    assert chatty.http.get("/tokenizer_info").json()["vocab_size"] == 259


def test_operators_routes_answer(chatty: Any) -> None:
    assert chatty.http.get("/load").json() == {"server_load": 0}
    rows = chatty.http.get("/plugins").json()["plugins"]
    used = {row["id"]: row["used"] for row in rows}
    assert {"endpoint:openai", "endpoint:admin"} <= set(used["server-openai"])
    assert chatty.http.post("/reset_prefix_cache").json() == {"reset": True}
    described = chatty.http.get("/openapi.json").json()
    assert "/v1/chat/completions" in described["paths"]
    assert "/sleep" not in described["paths"], "only for developers"
    assert chatty.http.post("/pause").status_code == 404
    assert "messages" in described["components"]["schemas"]["ChatRequest"]["properties"]
    reply = chatty.http.options(
        "/v1/models", headers={"Origin": "http://a", "Access-Control-Request-Method": "GET"}
    )
    assert reply.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("n", [1, 2])
def test_a_reader_that_leaves_ends_its_request(slow: Any, n: int) -> None:
    slow.until(lambda: slow.used_blocks() == 0)
    with client(slow) as api:
        stream = api.completions.create(
            model="tiny", prompt=["ab"] * n, max_tokens=200, stream=True, seed=1,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        next(iter(stream))
        assert slow.used_blocks() > 0
        stream.close()
    slow.until(lambda: slow.engine.num_live_requests == 0 and slow.used_blocks() == 0)


def test_a_caller_that_leaves_ends_its_request(slow: Any) -> None:
    with pytest.raises(httpx.ReadTimeout):
        slow.http.post("/v1/completions", json=LONG, timeout=0.3)
    slow.until(lambda: slow.engine.num_live_requests == 0 and slow.used_blocks() == 0)


def test_a_dead_engine_is_503_everywhere(start: Any, folders: Callable[[], Path]) -> None:
    server = start(write_tiny_model(folders()), step_seconds=0.02)
    with server.http.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as reply:
        lines = reply.iter_lines()
        assert next(lines).startswith("data:")
        server.engine.die()
        rest = [line for line in lines if line]
    assert "engine_dead" in rest[-2] and rest[-1] == "data: [DONE]"
    assert server.http.get("/health").status_code == 503
    with client(server) as api, pytest.raises(openai.InternalServerError) as caught:
        api.completions.create(model="tiny", prompt="a")
    assert caught.value.status_code == 503 and caught.value.code == "engine_dead"


def test_a_server_that_loads_says_how_far_it_is() -> None:
    async def ask(**headers: str) -> httpx.Response:
        gate = Gate()
        gate.progress(30, 120)
        transport = httpx.ASGITransport(app=gate)
        async with httpx.AsyncClient(transport=transport, base_url="http://gate") as http:
            return await http.get("/health", headers=headers)

    reply = asyncio.run(ask())
    assert reply.status_code == 503 and reply.headers["retry-after"] == "1"
    assert reply.json()["error"]["code"] == "loading" and "25 %" in reply.text
    page = asyncio.run(ask(accept="text/html,*/*"))
    assert page.status_code == 503 and page.headers["refresh"] == "1"
    assert '<progress max="120" value="30">' in page.text and "25 %" in page.text


def test_a_route_of_two_plugins_names_both() -> None:
    module = "pegboard_server_openai.admin_routes"
    twin = Endpoint("twin", f"{module}:routes")
    board = board_with("endpoint", twin)

    class State:
        engine = None
        names = ("x",)
        options = AppOptions(names=names)

    with pytest.raises(DuplicateError) as caught:
        collect_routes(board, State())  # type: ignore[arg-type]
    assert "GET /health" in str(caught.value)
    assert "'twin'" in str(caught.value) and "'admin'" in str(caught.value)


async def answer(request: Any) -> str:
    return "yes"


def one_route(ctx: Any) -> Any:
    return Route("GET", "/one", answer)


def no_slash(ctx: Any) -> Any:
    return [Route("GET", "one", answer)]


def not_called(ctx: Any) -> Any:
    return [Route("GET", "/one", "answer")]  # type: ignore[arg-type]


def good(ctx: Any) -> Any:
    yield Route("GET", "/one", answer)


@pytest.mark.parametrize(
    ("routes", "said"),
    [
        (one_route, "must return an iterable of Route"),
        (no_slash, "must begin with a slash"),
        (not_called, "the handler of GET /one cannot be called: 'answer'"),
    ],
)
def test_an_endpoint_that_gives_no_routes_is_named(routes: Any, said: str) -> None:
    with pytest.raises(PluginError, match=f"endpoint 'odd'.*{said}"):
        make_routes(routes, EndpointContext(None, None), "endpoint 'odd'")
    assert [route.path for route in make_routes(good, EndpointContext(None, None), "it")] == [
        "/one"
    ]


@pytest.mark.parametrize("path", ["health", "/a/", "/a//b", ""])
def test_a_route_must_have_a_plain_path(path: str) -> None:
    with pytest.raises(PluginError, match="slash"):
        Route("GET", path, lambda _: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(PluginError, match="FETCH"):
        Route("FETCH", "/a", lambda _: None)  # type: ignore[arg-type,return-value]
