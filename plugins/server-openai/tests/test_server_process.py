"""``pegboard serve`` as a process: signals, deaths, hung steps, and what is left behind."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from served import Served, serve

from pegboard.testing.checkpoints import write_tiny_model

LONG = {"prompt": "ab", "max_tokens": 2000, "ignore_eos": True, "temperature": 0}
SLOW = ("-o", 'plugin_config={"testkit":{"null_step_ms":5}}')


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture
def server(model: Path) -> Iterator[Callable[..., Served]]:
    """Starts ``pegboard serve`` with an engine that computes nothing, 5 ms a step."""
    running: list[Served] = []

    def begin(*flags: str, ready: bool = True, **options: Any) -> Served:
        words = (*SLOW, "--max-model-len", "4k", "--num-gpu-blocks-override", "8k", *flags)
        running.append(serve(model, *words, **options))
        if ready:
            running[-1].wait_ready()
        return running[-1]

    yield begin
    for one in running:
        one.kill()


@pytest.fixture(scope="module")
def shared(model: Path) -> Iterator[Served]:
    """One for the tests that leave it as it was."""
    words = (*SLOW, "--max-model-len", "4k", "--dev", "--step-timeout", "0.5")
    one = serve(model, *words)
    one.wait_ready()
    yield one
    one.kill()


class Reader(threading.Thread):
    """A client with a stream, or one that waits for the whole answer."""

    def __init__(self, url: str, stream: bool, **body: Any) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.body = {**LONG, "stream": stream, **body}
        self.begun = threading.Event()
        self.ended_at = 0.0
        self.status = 0
        self.lines: list[str] = []
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            with httpx.stream(
                "POST", f"{self.url}/v1/completions", json=self.body, timeout=30
            ) as reply:
                self.status = reply.status_code
                for line in reply.iter_lines():
                    if line:
                        self.lines.append(line)
                        self.begun.set()
        except httpx.HTTPError as error:
            self.error = error
        self.ended_at = time.monotonic()
        self.begun.set()

    @property
    def told(self) -> bool:
        """It got a whole answer, or an error."""
        if self.error is not None or self.status != 200:
            return True
        return self.lines[-1] == "data: [DONE]" if self.body["stream"] else bool(self.lines)


def test_a_signal_lets_running_requests_finish_and_refuses_new_ones(
    server: Callable[..., Served],
) -> None:
    one = server("--served-model-name", "tiny", "--shutdown-grace", "20")
    reader = Reader(one.url, True, max_tokens=300)
    assert reader.begun.wait(10)
    one.signal(signal.SIGTERM)
    one.until(lambda: one.get("/health").status_code == 503)
    refused = one.post("/v1/completions", **LONG)
    assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["code"] == "shutting_down"
    assert one.wait(15) == 0
    reader.join(5)
    assert reader.error is None and reader.lines[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in reader.lines[-2]
    assert one.leftovers() == []


@pytest.mark.accept
def test_the_grace_ends_what_takes_longer(server: Callable[..., Served]) -> None:
    one = server("--shutdown-grace", "0.2")
    readers = [Reader(one.url, stream) for stream in (True, False)]
    assert readers[0].begun.wait(10)
    begin = time.monotonic()
    one.signal(signal.SIGINT)
    assert one.wait(10) == 0
    assert time.monotonic() - begin < 5
    for reader in readers:
        reader.join(5)
        assert reader.told and '"finish_reason":"abort"' in "".join(reader.lines)
    assert one.leftovers() == []


@pytest.mark.accept
def test_a_second_signal_ends_at_once(server: Callable[..., Served]) -> None:
    one = server("--shutdown-grace", "60")
    reader = Reader(one.url, True)
    assert reader.begun.wait(10)
    one.signal(signal.SIGTERM)
    one.until(lambda: one.get("/health").status_code == 503)
    one.signal(signal.SIGTERM)
    assert one.wait(2) == -signal.SIGTERM
    one.until(lambda: one.leftovers() == [])


def test_a_signal_while_the_model_loads_ends_at_once(server: Callable[..., Served]) -> None:
    one = server(ready=False)
    one.until(lambda: one.url != "" and bool(one.children()))
    one.signal(signal.SIGTERM)
    assert one.wait(5) in (0, -signal.SIGTERM)
    one.until(lambda: one.leftovers() == [])


def kill_engine(one: Served, moment: float) -> None:
    """With clients of both kinds; each gets an answer or an error within 5 s."""
    readers = [Reader(one.url, n % 3 > 0, max_tokens=20 + 60 * n) for n in range(8)]
    readers[1].begun.wait(10)
    time.sleep(moment)
    os.kill(one.engine_pid(), signal.SIGKILL)
    killed = time.monotonic()
    for reader in readers:
        reader.join(5)
        assert not reader.is_alive(), "a client waits for ever"
        assert reader.told, reader.lines
        assert reader.ended_at - killed < 5


def test_a_killed_engine_is_told_to_every_client_and_ends_the_server(
    server: Callable[..., Served],
) -> None:
    rng = random.Random(1)
    for _ in range(2):
        one = server()
        kill_engine(one, rng.uniform(0, 0.3))
        assert one.wait(5) == 1
        assert one.leftovers() == []
        assert "the engine has stopped" in one.log()


@pytest.mark.accept
def test_at_fifty_random_moments_a_killed_engine_leaves_nobody_waiting_and_nothing_behind(
    server: Callable[..., Served],
) -> None:
    rng = random.Random(2)
    for _ in range(50):
        one = server()
        kill_engine(one, rng.uniform(0, 1.5))
        assert one.wait(5) == 1
        assert one.leftovers() == []


@pytest.mark.accept
def test_a_server_may_outlive_its_engine(server: Callable[..., Served]) -> None:
    one = server("--no-exit-on-engine-death")
    kill_engine(one, 0.0)
    one.until(lambda: one.get("/health").status_code == 503)
    reply = one.post("/v1/completions", **LONG)
    assert reply.status_code == 503 and reply.json()["error"]["code"] == "engine_dead"
    one.signal(signal.SIGTERM)
    assert one.wait(5) == 0


def test_a_hung_engine_is_reported_and_unhealthy_until_it_goes_on(shared: Served) -> None:
    one = shared
    reader = Reader(one.url, True, max_tokens=600)
    assert reader.begun.wait(10)
    assert one.get("/health").status_code == 200
    os.kill(one.engine_pid(), signal.SIGSTOP)
    one.until(lambda: one.get("/health").status_code == 503)
    assert one.get("/health").json()["error"]["code"] == "engine_hung"
    one.until(lambda: "counts as hung" in one.log())
    os.kill(one.engine_pid(), signal.SIGCONT)
    one.until(lambda: one.get("/health").status_code == 200)


def test_what_cannot_be_had_is_one_message_and_no_traceback(
    server: Callable[..., Served], model: Path, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        taken = serve(model, "--port", str(port))
        assert taken.wait(60) == 2
        assert "in use" in taken.log() and "Traceback" not in taken.log()
    secret = serve(model, "--ssl-certfile", str(tmp_path / "no.pem"))
    assert secret.wait(60) == 2
    assert "ssl-certfile" in secret.log() and "Traceback" not in secret.log()
    missing = serve(tmp_path / "nothing")
    assert missing.wait(60) != 0
    assert "nothing" in missing.log() and "Traceback" not in missing.log()
    assert missing.leftovers() == []


def test_deadlines_limits_keys_and_the_socket_of_a_path(
    server: Callable[..., Served], tmp_path: Path
) -> None:
    path = str(tmp_path / "socket")
    flags = ("--uds", path, "--max-concurrent-requests", "2", "--request-timeout", "1")
    one = server(*flags, "--api-key", "sesame-one", "sesame-two", "--dev", uds=path)
    headers = {"Authorization": "Bearer sesame-two"}
    http = one.http
    assert http.post("/v1/completions", json=LONG).status_code == 401
    begin = time.monotonic()
    reply = http.post("/v1/completions", json={**LONG, "timeout": 0.3}, headers=headers)
    assert 0.3 <= time.monotonic() - begin < 1
    [choice] = reply.json()["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("abort", "deadline")
    assert choice["text"]
    bad = http.post("/v1/completions", json={**LONG, "timeout": 0}, headers=headers)
    assert bad.status_code == 400 and bad.json()["error"]["param"] == "timeout"
    crowd: list[httpx.Response] = []

    def ask() -> None:
        with httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://a") as own:
            crowd.append(own.post("/v1/completions", json=LONG, headers=headers))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(reply.status_code for reply in crowd) == [200, 200, 429]
    [refused] = [reply for reply in crowd if reply.status_code == 429]
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["type"] == "rate_limit_error"
    info = http.get("/server_info", headers=headers)
    assert info.json()["server"]["api_keys"] == 2
    assert info.json()["engine"]["max_model_len"] == 4000
    assert "sesame" not in info.text + one.log()
    one.signal(signal.SIGTERM)
    assert one.wait(5) == 0
    assert not os.path.exists(path) and "sesame" not in one.log()


def test_frames_leave_at_once_and_as_evenly_as_the_engine_makes_them(shared: Served) -> None:
    one = shared
    [listening] = [
        c for c in psutil.Process(one.pid).net_connections("tcp") if c.status == "LISTEN"
    ]
    assert listening.laddr.port == one.http.base_url.port
    gaps = []
    with one.http.stream(
        "POST", "/v1/completions", json={**LONG, "max_tokens": 200, "stream": True}
    ) as reply:
        last = 0.0
        for line in reply.iter_lines():
            if line:
                now = time.monotonic()
                if last:
                    gaps.append(now - last)
                last = now
    gaps.sort()
    assert len(gaps) >= 150, "tokens are joined in one frame"
    assert gaps[len(gaps) // 2] < 0.010, "frames wait for one another (Nagle: 40 ms)"


def test_requests_end_and_wait_as_the_developer_says(shared: Served) -> None:
    one = shared
    one.until(lambda: one.get("/load").json() == {"server_load": 0})
    reader = Reader(one.url, True, request_id="mine")
    assert reader.begun.wait(10)
    assert one.post("/abort_requests", request_ids=["other"]).json() == {"aborted": 0}
    assert one.post("/abort_requests", request_ids=["mine"]).json() == {"aborted": 1}
    reader.join(5)
    assert '"finish_reason":"abort"' in reader.lines[-2]
    assert one.http.post("/pause").json() == {"is_paused": True}
    assert one.get("/is_paused").json() == {"is_paused": True}
    held = Reader(one.url, False, max_tokens=3)
    one.until(lambda: one.get("/load").json() == {"server_load": 1})
    assert not held.begun.is_set()
    assert one.http.post("/resume").json() == {"is_paused": False}
    assert held.begun.wait(5) and held.status == 200
    assert one.get("/is_sleeping").json() == {"is_sleeping": False}
    for path in ("/sleep", "/start_profile"):
        reply = one.http.post(path)
        assert reply.status_code == 501 and reply.json()["error"]["code"] == "not_supported"
    assert "VLLM_TORCH_PROFILER_DIR" in one.http.post("/start_profile").text
    assert one.http.post("/stop_profile").status_code == 400
    assert one.http.post("/pause?mode=keep").status_code == 400
