"""Handlers of endpoints: coroutine functions in the event loop, plain functions on threads."""

from __future__ import annotations

import asyncio
import sys
import threading
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from pegboard.api.endpoint import Endpoint, Route
from pegboard.errors import RequestError
from pegboard.testing.boards import own_board
from pegboard_server_openai.app import AppOptions, build_app

HERE = "endpoint_handlers_of_tests"


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[httpx.Response]]:
    """Send GET requests for these paths at the same time, to a server with nothing but `routes`."""

    def asked(routes: list[Route], *paths: str) -> list[httpx.Response]:
        module = types.ModuleType(HERE)
        module.routes = lambda ctx: routes  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, HERE, module)
        endpoint = Endpoint("of-tests", f"{HERE}:routes")
        engine: Any = SimpleNamespace(board=own_board(("endpoint", endpoint)), uses=lambda *_: None)
        app = build_app(engine, AppOptions(names=("m",)))

        async def all_of_them() -> list[httpx.Response]:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return list(await asyncio.gather(*(client.get(path) for path in paths)))

        return asyncio.run(asyncio.wait_for(all_of_them(), 20))

    return asked


def test_plain_handlers_block_nobody(ask: Callable[..., list[httpx.Response]]) -> None:
    together = threading.Barrier(3, timeout=10)

    def waits(request: Any) -> dict[str, str]:
        together.wait()
        return {"name": request.path_params["name"]}

    paths = ("/waits/a", "/waits/b", "/waits/c")
    answers = ask([Route("GET", "/waits/{name}", waits, "Waits")], *paths)
    assert [answer.json() for answer in answers] == [{"name": name} for name in "abc"]


def test_coroutine_functions_run_in_the_event_loop(
    ask: Callable[..., list[httpx.Response]],
) -> None:
    async def loop(request: Any) -> bool:
        return asyncio.get_running_loop().is_running()

    def passes_on(request: Any) -> Any:
        return loop(request)

    routes = [Route("GET", "/one", loop, "One"), Route("GET", "/two", passes_on, "Two")]
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
    assert [answer.json() for answer in ask(routes, "/one", "/two")] == [True, True]


def test_errors_of_a_plain_handler_become_answers(
    ask: Callable[..., list[httpx.Response]],
) -> None:
    def refuses(request: Any) -> None:
        raise RequestError("depth=0 is not allowed: 1 or more", field="depth")

    def fails(request: Any) -> None:
        raise ZeroDivisionError("a secret")

    routes = [Route("GET", "/refuses", refuses, "R"), Route("GET", "/fails", fails, "F")]
    refused, failed = ask(routes, "/refuses", "/fails")
    assert refused.status_code == 400 and "depth=0" in refused.text
    assert failed.status_code == 500 and "secret" not in failed.text
