"""A server on a free port, over an engine of this process."""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from pegboard import LLM, AsyncLLM, RequestOutput, SamplingParams
from pegboard.errors import EngineDeadError
from pegboard_server_openai.app import build_app
from pegboard_server_openai.gate import Gate
from pegboard_server_openai.options import AppOptions

sys.path.append(str(Path(__file__).parent))  # for `served`, which several files use


class Whole:
    """A state that is there already."""

    text = None
    shown = 0

    def __init__(self, output: RequestOutput) -> None:
        self._output = output

    def output(self) -> RequestOutput:
        return self._output


class ThreadStream:
    """The states of one request, each a copy."""

    def __init__(self, close: Callable[[], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self.queue: asyncio.Queue[RequestOutput | Exception] = asyncio.Queue()
        self._close = close
        self._ended = False

    def __aiter__(self) -> ThreadStream:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._ended:
            raise StopAsyncIteration
        found = await self.queue.get()
        if isinstance(found, Exception):
            raise found
        self._ended = found.finished
        return found

    async def feed(self, take: Any) -> None:
        async for output in self:
            late = take(Whole(output))
            if late is not None:
                await late

    def close(self) -> None:
        if not self._ended:
            self._ended = True
            self._close()

    def put(self, state: RequestOutput | Exception) -> None:
        self.loop.call_soon_threadsafe(self.queue.put_nowait, copy.deepcopy(state))


class ThreadEngine:
    """An `LLM` that is stepped by a thread."""

    def __init__(self, llm: LLM, step_seconds: float = 0.0) -> None:
        self.llm = llm
        self.board = llm.board
        self.config = llm.config
        self.is_paused = False
        self.silent_for = 0.0
        self.max_model_len = llm.model.max_model_len
        self.dead: Exception | None = None
        self.names: list[str] = []
        self._streams: dict[str, ThreadStream] = {}
        self._wake = threading.Event()
        self._closed = False
        self._pause = step_seconds
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def num_live_requests(self) -> int:
        return len(self._streams)

    async def add(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        deadline: float | None = None,
        trace_headers: Mapping[str, str] | None = None,
    ) -> ThreadStream:
        await self.check_health()
        assert request_id is not None and sampling_params is not None and deadline is None
        assert not self.is_paused, "requests are not held back here"
        self.names.append(request_id)
        stream = ThreadStream(lambda: self._drop(request_id))
        self._streams[request_id] = stream
        try:
            self.llm.engine.add_request(request_id, prompt, sampling_params, priority=priority)
        except Exception:
            del self._streams[request_id]
            raise
        self._wake.set()
        return stream

    async def apply_chat_template(
        self, messages: Any, chat_template: str | None = None, **options: Any
    ) -> Any:
        return await asyncio.to_thread(
            self.llm.apply_chat_template, messages, chat_template, **options
        )

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.llm.engine.inputs.check_length(text)
        return self.llm.get_tokenizer().encode(text, add_special_tokens)

    async def abort(self, request_ids: Any) -> None:
        for name in request_ids:
            self._drop(name)

    async def check_health(self) -> None:
        if self.dead is not None:
            raise self.dead

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    async def sleep(self, level: Any, mode: str) -> None:
        self.llm.sleep(level)

    async def wake_up(self, tags: Any) -> None:
        self.llm.wake_up(tags)

    async def is_sleeping(self) -> bool:
        return self.llm.is_sleeping()

    async def reset_prefix_cache(self) -> bool:
        return self.llm.reset_prefix_cache()

    def get_tokenizer(self) -> Any:
        return self.llm.get_tokenizer()

    def get_default_sampling_params(self) -> SamplingParams:
        return self.llm.get_default_sampling_params()

    def plugins(self) -> list[dict[str, Any]]:
        return self.llm.plugins()

    def uses(self, surface: str, names: Any) -> None:
        self.llm._front.uses(surface, names)

    async def shutdown(self, grace: float = 0.0) -> None:
        self.close()

    def close(self) -> None:
        self._closed = True
        self._wake.set()
        self._thread.join()
        self.llm.close()

    def used_blocks(self) -> int:
        return self.llm.engine.stats().used_blocks

    def die(self) -> None:
        self.dead = EngineDeadError("it was killed")
        for stream in list(self._streams.values()):
            stream.put(self.dead)

    def _drop(self, request_id: str) -> None:
        self._streams.pop(request_id, None)
        self.llm.engine.abort_request(request_id)

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait()
            self._wake.clear()
            while self.llm.engine.core.has_work() and not self._closed:
                time.sleep(self._pause)
                for output in self.llm.engine.step():
                    self._tell(output)

    def _tell(self, output: RequestOutput) -> None:
        stream = self._streams.get(output.request_id)
        if output.finished:
            self._streams.pop(output.request_id, None)
        if stream is not None:
            stream.put(output)


class ProcessEngine(AsyncLLM):
    """The real one, with what tests ask."""

    names: list[str]

    @classmethod
    def make(cls, folder: Path, step_seconds: float, **settings: Any) -> ProcessEngine:
        if step_seconds:
            settings["distributed_executor_backend"] = "null"
            settings["plugin_config"] = {"testkit": {"null_step_ms": 1e3 * step_seconds}}
        made = cls(str(folder), platform="null", **settings)
        made.names = []
        return made

    async def add(
        self, prompt: Any, sampling_params: Any = None, request_id: Any = None, **more: Any
    ) -> Any:
        self.names.append(request_id)
        return await super().add(prompt, sampling_params, request_id, **more)

    def used_blocks(self) -> int:
        return int(self.client.call("stats").result(5).used_blocks)

    def die(self) -> None:
        os.kill(self.client.pid, signal.SIGKILL)
        while not self.errored:
            time.sleep(0.01)


class Running:
    """A server and what tests ask it with."""

    def __init__(self, engine: ThreadEngine | ProcessEngine, gate: Gate, url: str) -> None:
        self.engine = engine
        self.gate = gate
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=20)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def events(self, path: str, **body: Any) -> list[str]:
        """The data of the events of a stream."""
        reply = self.post(path, stream=True, **body)
        assert reply.status_code == 200, reply.text
        lines = [line for line in reply.text.split("\n\n") if line]
        assert all(line.startswith("data: ") for line in lines)
        return [line.removeprefix("data: ") for line in lines]

    def used_blocks(self) -> int:
        return self.engine.used_blocks()

    def until(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + 5
        while not true():
            assert time.monotonic() < end, "it did not come true within 5 s"
            time.sleep(0.01)


@contextmanager
def run_app(app: Any) -> Iterator[str]:
    """A real uvicorn in a thread; its address."""
    with closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        config = uvicorn.Config(app, log_level="warning", lifespan="on")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(
    scope="module", params=["thread", pytest.param("process", marks=pytest.mark.accept)]
)
def start(request: pytest.FixtureRequest) -> Iterator[Callable[..., Running]]:
    """Starts servers: ``start(folder, **options)``; all end with the module. Their engine is one of
    this process, and `AsyncLLM`."""
    with ExitStack() as stack:

        def begin(
            folder: Path, *, step_seconds: float = 0.0, app: Any = None, **settings: Any
        ) -> Running:
            settings.setdefault("max_model_len", 256)
            engine: ThreadEngine | ProcessEngine
            if request.param == "thread":
                llm = LLM(str(folder), platform="null", **settings)
                engine = ThreadEngine(llm, step_seconds)
            else:
                engine = ProcessEngine.make(folder, step_seconds, **settings)
            stack.callback(engine.close)
            options = app or AppOptions(names=("tiny", "other"), trust_request_chat_template=True)
            gate = Gate(build_app(engine, options))
            running = Running(engine, gate, stack.enter_context(run_app(gate)))
            stack.callback(running.http.close)
            return running

        yield begin


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """A fresh folder at each call."""
    root = tmp_path_factory.mktemp("models")
    numbers = itertools.count()
    return lambda: root / str(next(numbers))
