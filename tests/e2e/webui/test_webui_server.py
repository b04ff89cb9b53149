"""The page behind this project's server: open to all, while what it asks for needs the key."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest

from pegboard.plugins import load_plugins
from pegboard_server_openai.app import AppOptions, build_app


class Idle:
    """As much of an engine as routes without a model need."""

    max_model_len = 64
    num_live_requests = 0

    def __init__(self) -> None:
        self.board = load_plugins()

    def uses(self, surface: str, names: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def app() -> Any:
    return build_app(Idle(), AppOptions(names=("m",), api_keys=("secret",)))  # type: ignore[arg-type]


def ask(app: Any, method: str, *paths: str, **headers: str) -> list[httpx.Response]:
    async def run() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://ui") as http:
            return [await http.request(method, path, headers=headers) for path in paths]

    return asyncio.run(run())


def test_the_page_and_all_that_it_loads_need_no_key(app: Any) -> None:
    (page,) = ask(app, "GET", "/ui")
    assert page.status_code == 200
    loaded = re.findall(r'(?:src|href)="(ui/[\w.]+)"', page.text)
    files = ask(app, "GET", *(f"/{name}" for name in loaded))
    modules = {name for file in files for name in re.findall(r'from "\./([\w.]+)"', file.text)}
    files += ask(app, "GET", *(f"/ui/{name}" for name in modules))
    assert len(files) > 12
    assert {file.status_code for file in files} == {200}
    assert all("script-src 'self'" in f.headers["content-security-policy"] for f in files)
    assert ask(app, "HEAD", "/ui")[0].status_code == 200


def test_nothing_else_opens_with_it(app: Any) -> None:
    paths = ("/v1/models", "/plugins", "/load", "/ui/../load", "/UI", "/ui/none.js")
    assert [reply.status_code for reply in ask(app, "GET", *paths)] == [401] * len(paths)
    assert ask(app, "POST", "/ui", "/ui/app.js")[1].status_code == 401
    models = ask(app, "GET", "/v1/models", authorization="Bearer secret")[0]
    assert models.json()["data"][0]["id"] == "m"
