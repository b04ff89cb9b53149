"""Bodies that a generator makes from the server's own description, and what attackers send."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest

from pegboard.testing.checkpoints import write_tiny_model
from pegboard_server_openai.options import AppOptions

CASES = 500


@pytest.fixture(scope="module")
def server(start: Callable[..., Any], folders: Callable[[], Path]) -> Any:
    options = AppOptions(
        names=("tiny",), trust_request_chat_template=True, enable_response_store=True
    )
    return start(write_tiny_model(folders()), app=options, max_model_len=128)


@pytest.fixture(scope="module")
def locked(start: Callable[..., Any], folders: Callable[[], Path]) -> Any:
    options = AppOptions(names=("tiny",), api_keys=("sesame",), max_body_bytes=5000)
    return start(write_tiny_model(folders()), app=options)


def plausible(path: str, body: Any) -> Any:
    """Half of the bodies: random ones are hardly ever right in all fields, so some are put right.

    Names of models, and fields that are refused by name, are left out of them.
    """
    if not isinstance(body, dict) or len(json.dumps(body)) % 2:
        return body
    kept = {k: v for k, v in body.items() if k in ("stop", "seed", "n", "stream", "user", "echo")}
    if isinstance(kept.get("n"), int):
        kept["n"] = 1
    if "seed" in kept and isinstance(kept["seed"], int):
        kept["seed"] = abs(kept["seed"]) % 1000
    right: dict[str, Any] = {
        "/v1/completions": {"prompt": "ab", "max_tokens": 3},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3},
        "/v1/responses": {"input": "a", "max_output_tokens": 3},
        "/v1/responses/input_tokens": {"input": "a"},
        "/v1/messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3},
        "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "a"}]},
        "/tokenize": {"prompt": str(body.get("prompt") or "x")},
        "/detokenize": {"tokens": [5, 6]},
    }
    return {**kept, **right.get(path, {})}


def asked_at(http: httpx.Client, api: Any, case: Any) -> str:
    """The path of a case. Half of the names in paths are put right: random ones are of nothing."""
    path: str = case.formatted_path
    if len(str(case.path_parameters)) % 2 == 0:
        return path
    if api.path.startswith("/v1/models/"):
        return "/v1/models/tiny"
    if api.path.startswith("/v1/responses/{"):
        kept = http.post("/v1/responses", json={"input": "a", "max_output_tokens": 1})
        return str(api.path.replace("{name}", kept.json()["id"]))
    return path


def ask(http: httpx.Client, api: Any, case: Any) -> httpx.Response:
    """Send what was generated."""
    path = asked_at(http, api, case)
    plain = isinstance(case.body, (dict, list, str, int, float, bool)) or case.body is None
    if api.method.upper() == "GET" or not plain:
        return http.request(api.method, path)
    content = json.dumps(plausible(path, case.body), allow_nan=True)
    return http.request(api.method, path, content=content)


def statuses(http: httpx.Client, api: Any) -> Counter[int]:
    """How often an operation was answered with which status, of at least `CASES` requests."""
    found: Counter[int] = Counter()
    asked: list[Any] = []

    def check(case: Any) -> None:
        reply = ask(http, api, case)
        found[reply.status_code] += 1
        assert reply.status_code < 500, (case.body, reply.text)
        if reply.status_code >= 400:
            form = {"message", "type"}
            form |= set() if api.path.startswith("/v1/messages") else {"param", "code"}
            assert set(reply.json()["error"]) == form

    @hypothesis.settings(
        max_examples=CASES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=api.as_strategy())
    def run(case: Any) -> None:
        asked.append(case)
        check(case)

    run()
    again = itertools.cycle(asked)  # an operation without parameters has one case
    while found.total() < CASES:
        check(next(again))
    return found


@pytest.mark.accept
def test_no_body_that_fits_the_description_is_a_fault_of_the_server(server: Any) -> None:
    import schemathesis

    described = server.http.get("/openapi.json").json()
    operations = schemathesis.openapi.from_dict(described).get_all_operations()
    for api in (operation.ok() for operation in operations):
        found = statuses(server.http, api)
        print(api.method, api.path, dict(found))
        # Nothing is made in the background, which alone could be cancelled.
        least = 0 if api.path.endswith("/cancel") else found.total()
        assert found[200] * 5 >= least, (api.method, api.path, found)
    assert server.http.get("/health").status_code == 200


@pytest.mark.parametrize(
    "path",
    ["//v1/models", "/v1//models", "/v1/models/", "/v1/./models", "/v1/../v1/models",
     "/health/../v1/models", "/health%2f..%2fv1%2fmodels", "/%2e%2e/v1/models", "/V1/models",
     "/health;/v1/models", "/health%00", "/health?/v1/models#", "/v1/models?key=sesame",
     "/ping/v1/models", "/version/../load", "/health\\..\\load", "/%68ealth/../load",
     "/server_info", "/openapi.json", "/docs", "/metrics-not", "/sleep"],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS", "PUT", "TRACE", "get"])
def test_no_path_and_no_method_goes_around_the_keys(locked: Any, path: str, method: str) -> None:
    import http.client

    address = locked.url.removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=10)
    connection.putrequest(method, path, skip_host=False, skip_accept_encoding=True)
    connection.endheaders()
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    is_health = path.startswith("/health?") and method in ("GET", "HEAD")
    assert reply.status in ((200,) if is_health else (400, 401)), (reply.status, body)
    assert b"tiny" not in body and b"sesame" not in body


@pytest.mark.parametrize("header", ["Authorization", "X-API-Key"])
@pytest.mark.parametrize("value", ["sesam", "sesamee", "Sesame", "sesame", "Bearer x", "é"])
def test_wrong_keys_are_refused(locked: Any, header: str, value: str) -> None:
    value = f"Bearer {value}" if header == "Authorization" else value
    reply = locked.http.get("/v1/models", headers={header: value.encode()})
    good = value.removeprefix("Bearer ") == "sesame"
    assert reply.status_code == (200 if good else 401)
    assert "sesame" not in reply.text


def test_a_body_that_never_ends_is_cut_off(locked: Any) -> None:
    headers = {"Authorization": "Bearer sesame"}
    sent = 0

    def pieces() -> Iterator[bytes]:
        nonlocal sent
        while sent < 50_000_000:
            sent += 1000
            yield b" " * 1000

    with contextlib.suppress(httpx.WriteError, httpx.ReadError):  # closed while we were sending
        reply = locked.http.post("/v1/completions", content=pieces(), headers=headers)
        assert reply.status_code == 413
    assert sent < 20_000_000, "all of it was taken"
    assert locked.http.get("/health").status_code == 200


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ self._TemplateReference__context }}",
    "{{ (messages|attr('__class__')) }}",
    "{% for x in range(10**9) %}{% for y in range(10**9) %}{% endfor %}{% endfor %}",
    "{{ 'a' * 10**10 }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
]


@pytest.mark.parametrize("template", ESCAPES)
def test_templates_of_requests_stay_in_their_sandbox(server: Any, template: str) -> None:
    messages = [{"role": "user", "content": "a"}]
    reply = server.post("/tokenize", messages=messages, chat_template=template)
    assert reply.status_code == 400, reply.text
    assert "root:" not in reply.text and "subclass" not in reply.text.split("chat_template")[0]
    assert server.http.get("/health").status_code == 200


@pytest.mark.parametrize("path", ["/tokenize", "/v1/chat/completions"])
def test_templates_of_requests_need_trust(locked: Any, path: str) -> None:
    messages = [{"role": "user", "content": "a"}]
    headers = {"Authorization": "Bearer sesame"}
    for body in ({"chat_template": "{{ 1 }}"}, {"chat_template_kwargs": {"chat_template": "x"}}):
        reply = locked.http.post(path, json={"messages": messages, **body}, headers=headers)
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == next(iter(body))


@pytest.mark.parametrize("name", ["self", "messages", "tools", "chat_template", "documents"])
def test_template_variables_cannot_take_the_place_of_arguments(server: Any, name: str) -> None:
    messages = [{"role": "user", "content": "a"}]
    reply = server.post("/tokenize", messages=messages, chat_template_kwargs={name: "x"})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "chat_template_kwargs"
