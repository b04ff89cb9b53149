"""``pegboard serve`` tells at ``/metrics`` what it served, and to whom it could not."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pegboard.testing.checkpoints import write_tiny_model

LETTERS = {"model": "tiny", "prompt": [5, 6, 7], "temperature": 0, "ignore_eos": True}
OPTIONS = (
    *("--distributed-executor-backend", "null"),
    *("--num-gpu-blocks-override", "512"),
    *("--max-model-len", "4096"),
)
"""An engine that computes nothing."""


def healthy(client: httpx.Client) -> bool:
    """Whether the server listens and its model is there."""
    try:
        return client.get("/health").status_code == 200
    except httpx.ConnectError:
        return False


@pytest.fixture(scope="module")
def server(pegboard: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder: Path = tmp_path_factory.mktemp("served")
    model, socket = str(write_tiny_model(folder / "tiny")), str(folder / "socket")
    names = ("--uds", socket, "--api-key", "k", "--served-model-name", "tiny")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = pegboard.popen("serve", model, *names, *OPTIONS, **quiet)
    transport = httpx.HTTPTransport(uds=socket)
    with httpx.Client(transport=transport, base_url="http://served", timeout=30) as client:
        try:
            until(lambda: healthy(client))
            yield client
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


def until(true: Any) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "it did not come true within 60 s"
        time.sleep(0.05)


def metrics(client: httpx.Client) -> dict[tuple[str, str], float]:
    """By name and finish reason, of the model."""
    answer = client.get("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, sample.labels.get("finished_reason", "")): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.labels.get("model_name") == "tiny"
    }


def test_what_clients_got_is_counted_for_those_who_have_no_key(server: httpx.Client) -> None:
    key = {"authorization": "Bearer k"}
    assert server.post("/v1/completions", json=LETTERS).status_code == 401
    body = {**LETTERS, "max_tokens": 5}
    assert server.post("/v1/completions", json=body, headers=key).status_code == 200
    found = metrics(server)
    assert found["vllm:generation_tokens_total", ""] == 5
    assert found["vllm:prompt_tokens_total", ""] == 3
    assert found["vllm:request_success_total", "length"] == 1
    assert found["vllm:e2e_request_latency_seconds_count", ""] == 1


def test_a_client_that_leaves_is_counted_as_an_abort(server: httpx.Client) -> None:
    key = {"authorization": "Bearer k"}
    body = {**LETTERS, "max_tokens": 4000, "stream": True}
    with server.stream("POST", "/v1/completions", json=body, headers=key) as answer:
        assert next(answer.iter_lines()).startswith("data: ")
    until(lambda: metrics(server)["vllm:request_success_total", "abort"] == 1)
    until(lambda: metrics(server)["vllm:num_requests_running", ""] == 0)
    found = metrics(server)
    assert found["vllm:request_generation_tokens_sum", ""] < 4000
    assert (
        found["vllm:generation_tokens_total", ""] == found["vllm:request_generation_tokens_sum", ""]
    )
