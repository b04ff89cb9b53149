"""Sleep over HTTP, as clients of vLLM ask for it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pegboard.testing.checkpoints import write_tiny_model
from pegboard_server_openai.options import AppOptions

ASK: dict[str, Any] = {"model": "tiny", "prompt": "abc", "max_tokens": 8, "temperature": 0}
ASLEEP, AWAKE = {"is_sleeping": True}, {"is_sleeping": False}


@pytest.fixture(scope="module")
def server(start: Callable[..., Any], folders: Callable[[], Path]) -> Any:
    options = AppOptions(names=("tiny",), dev=True)
    return start(write_tiny_model(folders()), app=options)


def text(server: Any) -> str:
    reply = server.post("/v1/completions", **ASK)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["text"])


@pytest.mark.parametrize("query", ["", "?level=1", "?level=2", "?level=2&mode=wait"])
def test_it_sleeps_and_wakes_up(server: Any, query: str) -> None:
    before = text(server)
    assert server.http.get("/is_sleeping").json() == AWAKE
    assert server.http.post(f"/sleep{query}").json() == ASLEEP
    assert server.http.get("/is_sleeping").json() == ASLEEP
    assert server.http.get("/health").status_code == 200
    assert server.post("/tokenize", prompt="abc").status_code == 200
    assert server.http.post("/wake_up?tags=weights").json() == ASLEEP
    assert server.http.post("/wake_up?tags=weights&tags=kv_cache").json() == AWAKE
    assert text(server) == before
    assert server.http.post("/wake_up").json() == AWAKE


@pytest.mark.parametrize(
    ("path", "field"),
    [("/sleep?level=0", "level"), ("/sleep?level=x", "level"), ("/wake_up?tags=all", "tags")],
)
def test_other_levels_and_tags_are_refused(server: Any, path: str, field: str) -> None:
    reply = server.http.post(path)
    assert reply.status_code == 400 and reply.json()["error"]["param"] == field
    assert server.http.get("/is_sleeping").json() == AWAKE


@pytest.mark.accept
@pytest.mark.parametrize("start", ["process"], indirect=True)  # else nothing is held back
def test_requests_wait_until_it_is_awake(start: Callable[..., Any], server: Any) -> None:
    before = text(server)
    assert server.http.post("/sleep?mode=keep").json()["error"]["param"] == "mode"
    server.http.post("/sleep")
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(text, server)
        server.until(lambda: server.http.get("/load").json() == {"server_load": 1})
        assert not held.done()
        assert server.http.post("/wake_up").json() == AWAKE
        assert held.result() == before
