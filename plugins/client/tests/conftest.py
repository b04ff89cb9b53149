"""A server that answers as it is told to, in a thread of the test."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from pegboard.testing.checkpoints import ByteVocabulary, write_scripted_model

SCRIPT = "Hello, 😀!"


class FakeServer:
    """OpenAI's API, without a model: answers are the words of `say`."""

    def __init__(self) -> None:
        self.say: Callable[[dict[str, Any]], list[str]] = lambda body: ["one ", "two ", "three"]
        self.models = ["fake"]
        self.key: str | None = None
        self.first_seconds = 0.0
        self.gap_seconds = 0.0
        self.usage = True
        self.statuses: list[int] = []
        """Of the next answers; then 200."""
        self.break_after: int | None = None
        """Pieces after which a stream breaks off."""
        self.bodies: list[dict[str, Any]] = []
        self.left = 0
        """Streams whose reader went away."""
        self.running = 0
        self.most = 0
        self.connections = 0
        self.lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def setup(self) -> None:
                super().setup()
                with fake.lock:
                    fake.connections += 1

            def do_GET(self) -> None:
                if self._admitted():
                    routes: dict[str, Any] = {
                        "/v1/models": {"data": [{"id": name} for name in fake.models]},
                        "/tokenizer_info": {"vocab_size": 50, "special_ids": [0, 1]},
                    }
                    found = routes.get(self.path)
                    self._json(404 if found is None else 200, found or _error("no route"))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if not self._admitted():
                    return
                if self.path == "/tokenize":
                    self._json(200, {"count": len(body["prompt"].split())})
                elif self.path == "/detokenize":
                    self._json(200, {"prompt": " ".join(map(str, body["tokens"]))})
                else:
                    fake.answer(self, body)

            def _admitted(self) -> bool:
                given = self.headers.get("authorization")
                if fake.key is None or given == f"Bearer {fake.key}":
                    return True
                self._json(401, _error("an API key is needed"))
                return False

            def _json(self, status: int, content: Any) -> None:
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        return Handler

    def answer(self, handler: Any, body: dict[str, Any]) -> None:
        with self.lock:
            self.bodies.append(body)
            status = self.statuses.pop(0) if self.statuses else 200
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            time.sleep(self.first_seconds)
            if status != 200:
                handler._json(status, _error(f"told to answer {status}"))
            elif body.get("stream"):
                self._stream(handler, body)
            else:
                chat = handler.path == "/v1/chat/completions"
                text = "".join(self.say(body))
                choice = {"message": {"content": text}} if chat else {"text": text}
                handler._json(200, {"id": "x", "choices": [{"index": 0, **choice}]})
        except OSError:
            self.left += 1
            handler.close_connection = True
        finally:
            with self.lock:
                self.running -= 1

    def _stream(self, handler: Any, body: dict[str, Any]) -> None:
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        chat = handler.path == "/v1/chat/completions"
        words = self.say(body)

        def put(data: str) -> None:
            event = f"data: {data}\n\n".encode()
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))

        if chat:
            put(_chunk({"delta": {"role": "assistant", "content": ""}}))
        for number, word in enumerate(words):
            if number == self.break_after:
                handler.wfile.flush()
                handler.connection.shutdown(2)
                handler.close_connection = True
                return
            if number:
                time.sleep(self.gap_seconds)
            put(_chunk({"delta": {"content": word}} if chat else {"text": word}))
        end = {"delta": {}} if chat else {"text": ""}
        put(_chunk({**end, "finish_reason": "stop"}))
        if self.usage:
            used = {"prompt_tokens": 7, "completion_tokens": len(words)}
            put(json.dumps({"choices": [], "usage": used}))
        put("[DONE]")
        handler.wfile.write(b"0\r\n\r\n")


def _chunk(choice: dict[str, Any]) -> str:
    return json.dumps({"choices": [{"index": 0, "finish_reason": None, **choice}]})


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "x", "param": None, "code": None}}


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    server = FakeServer()
    yield server
    server.close()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """``run("chat", "--url", …, stdin="text")``: a command line, in this process; its exit code."""
    (script,) = entry_points(group="console_scripts", name="pegboard")
    main = script.load()
    log = logging.getLogger("pegboard")
    for part, value in (("handlers", list(log.handlers)), ("level", log.level)):
        monkeypatch.setattr(log, part, value)

    def call(*words: str, stdin: str = "") -> int:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        monkeypatch.setattr(sys, "argv", ["pegboard", *words])
        code: int = main()
        return code

    return call


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PEGBOARD_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *words: str) -> None:
        main, side = pty.openpty()
        code = (
            "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
            "from pegboard.cli import main; sys.exit(main())"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-Ic", code, *words],
            stdin=side,
            stdout=side,
            stderr=side,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb", "PEGBOARD_LOG_LEVEL": "ERROR"},
        )
        os.close(side)
        self._main = main
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._main, text.encode())

    def until(self, text: str, seconds: float = 60) -> str:
        """What is shown up to and with `text`; it is gone from what is looked at next."""
        end = time.monotonic() + seconds
        while text not in self.seen:
            late = time.monotonic() > end or self.process.poll() is not None
            assert not late, f"{text!r} did not come; there is {self.seen!r}"
            self._read()
        shown, _, self.seen = self.seen.partition(text)
        return shown + text

    def _read(self) -> None:
        ready, _, _ = select.select([self._main], [], [], 0.1)
        if ready:
            try:
                self.seen += os.read(self._main, 65536).decode("utf-8", "replace")
            except OSError:  # the other side was closed
                time.sleep(0.01)

    def ended(self, seconds: float = 30) -> int:
        """The exit code."""
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < end, f"it did not end; there is {self.seen!r}"
            self._read()
        self._read()
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._main)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Starts commands: ``terminal("chat", "--url", …)``."""
    with ExitStack() as stack:

        def start(*words: str) -> Terminal:
            made = Terminal(*words)
            stack.callback(made.close)
            return made

        yield start


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers the question "hi" with `SCRIPT`."""
    return write_scripted_model(
        tmp_path_factory.mktemp("scripted") / "model",
        ByteVocabulary().ids(SCRIPT.encode()),
        prompt_tokens=len("<user>hi\n<assistant>"),
    )
