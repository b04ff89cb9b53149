"""Routes of several plugins: which may stand beside which, and whose is asked."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from pegboard import __version__
from pegboard.errors import DuplicateError
from pegboard.testing.boards import board_in
from pegboard_server_openai.app import AppOptions, build_app

SOURCE = """
from pegboard.api.endpoint import Endpoint, Route
from pegboard.api.hooks import hookimpl

PEGBOARD_API = {{"endpoint": 0}}


@hookimpl
def pegboard_endpoints():
    return [Endpoint({endpoint!r}, "{module}:routes")]


def routes(ctx):
    async def answer(request):
        return "{module} " + request.url.path
    return [Route("GET", path, answer) for path in {paths}]
"""


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function from (name, endpoint, paths) of plugins to the application with their routes."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def make(*plugins: tuple[str, str, list[str]]) -> Any:
        for name, endpoint, paths in plugins:
            module = f"routes_of_{name}"
            source = SOURCE.format(endpoint=endpoint, module=module, paths=paths)
            (tmp_path / f"{module}.py").write_text(source)
            info = tmp_path / f"{name}-1.0.dist-info"
            info.mkdir()
            needs = f"Requires-Dist: pegboard-core=={__version__}"
            (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n{needs}\n")
            (info / "entry_points.txt").write_text(f"[pegboard.plugins]\n{name} = {module}\n")
        board = board_in(tmp_path)
        engine: Any = SimpleNamespace(board=board, uses=lambda *_: None)
        return build_app(engine, AppOptions(names=("x",)))

    yield make
    for name in set(sys.modules) - before:
        if name.startswith("routes_of_"):
            del sys.modules[name]


def get(app: Any, path: str) -> str:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
            return await http.get(path)

    return asyncio.run(ask()).text.strip('"')


@pytest.mark.parametrize("second", ["/things/{name}", "/things/{other}"])
def test_one_route_of_two_plugins_names_both_and_the_ways_out(
    served: Callable[..., Any], second: str
) -> None:
    with pytest.raises(DuplicateError) as caught:
        served(("aaa", "first", ["/things/{name}"]), ("zzz", "second", [second]))
    for text in (
        f"route GET {second} is added by endpoint 'first' of aaa 1.0 and by endpoint 'second'",
        "uninstall aaa or leave it out with VLLM_PLUGINS=zzz, or uninstall zzz or leave",
    ):
        assert text in str(caught.value)


def test_an_endpoint_that_two_want_keeps_the_server_from_starting(
    served: Callable[..., Any],
) -> None:
    with pytest.raises(DuplicateError, match=r"endpoint 'same'.*aaa 1\.0.*zzz 1\.0.*the HTTP"):
        served(("aaa", "same", ["/one"]), ("zzz", "same", ["/other"]))


@pytest.mark.parametrize("path", ["/docs", "/openapi.json"])
def test_a_route_that_the_server_has_itself_is_refused(
    served: Callable[..., Any], path: str
) -> None:
    with pytest.raises(DuplicateError, match=r"by the server itself.*uninstall aaa or leave"):
        served(("aaa", "first", [path]))


def test_a_path_that_is_written_out_comes_before_one_that_would_match_it_too(
    served: Callable[..., Any],
) -> None:
    app = served(
        ("aaa", "first", ["/{anything:path}", "/v9/{thing}", "/{all}/x"]),
        ("zzz", "second", ["/v9/models", "/v9/models/{one}"]),
    )
    assert get(app, "/v9/models") == "routes_of_zzz /v9/models"
    assert get(app, "/v9/models/a") == "routes_of_zzz /v9/models/a"
    assert get(app, "/v9/x") == "routes_of_aaa /v9/x"
    assert get(app, "/else/where") == "routes_of_aaa /else/where"
