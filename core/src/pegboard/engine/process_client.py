"""`ProcessClient`: an engine in a process of its own."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec
import zmq

from pegboard.api.views import EngineRequest
from pegboard.config.engine import EngineConfig
from pegboard.config.plain import plain_config
from pegboard.engine.child import Child
from pegboard.engine.client import OnBatch, OnDeath
from pegboard.engine.messages import (
    ANSWERS,
    Abort,
    Add,
    Answer,
    Batch,
    Call,
    Close,
    Failed,
    Finish,
    Progress,
    Ready,
    Start,
    pack,
    read_from_engine,
)
from pegboard.engine.silence import SilenceWatch, processor_seconds
from pegboard.errors import ConfigError, EngineDeadError, RequestError
from pegboard.logging import get_logger
from pegboard.plugins.plan import PluginPlan

__all__ = ["ProcessClient"]

_LOOK_MS = 1000
"""Milliseconds between two looks at the clock while nothing comes."""

_Unsendable = (TypeError, ValueError, OverflowError)


class ProcessClient:
    """`EngineClient` over two sockets of a private folder. A forked child may not use it.

    Making one starts the process and waits until the engine is built; `progress` is called with
    (bytes loaded, bytes in all) meanwhile. The process loads the plugins of `plan`.

    Raises what building the engine raised there, by the same class, and `EngineDeadError` if the
    process ended.
    """

    def __init__(
        self,
        config: EngineConfig,
        plan: PluginPlan,
        *,
        progress: Callable[[int, int], Any] | None = None,
    ) -> None:
        self._owner = os.getpid()
        self._sending = threading.Lock()
        self._closed = False
        self._dead: EngineDeadError | None = None
        self._numbers = itertools.count()
        self._calls: dict[int, tuple[str, Future[Any]]] = {}
        self._heard = time.monotonic()
        self._working = False
        self.what_runs: Callable[[], Mapping[str, Any]] = dict
        """Facts for the log, when a step takes long."""
        self._reader: threading.Thread | None = None
        self._on_batch: OnBatch = _ignore
        self._on_death: OnDeath = _ignore
        self._undo = contextlib.ExitStack()
        try:
            self._open(config, plan)
            self.ready = self._await_ready(progress)
        except BaseException:
            self._closed = True
            self._release()
            raise

    @property
    def pid(self) -> int:
        """Of the engine's process."""
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """Of the engine's process; negative for a signal, None while it runs."""
        return self._child.exit_code

    @property
    def silent_for(self) -> float:
        return time.monotonic() - self._heard if self._working else 0.0

    def start(self, on_batch: OnBatch, on_death: OnDeath) -> None:
        self._on_batch, self._on_death = on_batch, on_death
        self._reader = threading.Thread(target=self._read, name="pegboard-outputs", daemon=True)
        self._reader.start()

    def add(self, requests: Sequence[EngineRequest]) -> None:
        try:
            body = pack(Add(list(requests)))
        except _Unsendable as error:
            raise RequestError(f"the engine's process cannot be told of this: {error}") from error
        if not self._working:
            self._heard = time.monotonic()
            self._working = True
        self._send(body)

    def abort(self, ids: Iterable[str]) -> None:
        names = list(ids)
        if names:
            self._send(pack(Abort(names)))

    def finish(self, ids: Iterable[str], reason: str) -> None:
        names = list(ids)
        if names:
            self._send(pack(Finish(names, reason)))

    def call(self, name: str, *values: Any) -> Future[Any]:
        if name not in ANSWERS:
            raise RequestError(f"call={name!r} is not allowed: one of {', '.join(ANSWERS)}")
        number, future = next(self._numbers), Future[Any]()
        self._calls[number] = (name, future)
        try:
            self._send(pack(Call(number, name, list(values))))
        except BaseException:
            self._calls.pop(number, None)
            raise
        return future

    def close(self, grace: float = 10.0) -> None:
        if os.getpid() != self._owner:
            return
        with self._sending:
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(zmq.Again):
                self._out.send(pack(Close()), zmq.NOBLOCK)
        if not self._child.wait(grace):
            get_logger("pegboard.engine").warning("the engine did not end in time", grace=grace)
        self._release()

    # Sending

    def _send(self, body: bytes) -> None:
        if os.getpid() != self._owner:  # before the lock, which a thread of the parent may hold
            raise EngineDeadError(
                f"this engine belongs to process {self._owner}, of which this one is a forked "
                "child; a child makes an engine of its own"
            )
        with self._sending:
            if self._closed:
                raise EngineDeadError("this engine is closed")
            if self._dead is not None:
                raise EngineDeadError(str(self._dead))
            try:
                self._out.send(body, zmq.NOBLOCK)
            except zmq.Again:  # there is nobody to read it
                raise EngineDeadError("the engine's process is gone") from None

    # Receiving

    def _await_ready(self, progress: Callable[[int, int], Any] | None) -> Ready:
        poller = self._poller()
        while True:
            ended = self._child.ended in dict(poller.poll())
            while (message := self._receive()) is not None:
                if isinstance(message, Ready):
                    return message
                if isinstance(message, Failed):
                    raise message.problem.error()
                if isinstance(message, Progress) and progress is not None:
                    progress(message.done, message.total)
            if ended:
                self._child.wait()
                raise EngineDeadError(f"{self._child.describe()} while the engine was built")

    def _read(self) -> None:
        """On the reading thread, until the process is gone."""
        poller = self._poller()
        pids = (self.pid, *self.ready.facts.get("rank_processes", ()))
        watch = SilenceWatch(lambda: processor_seconds(pids))
        try:
            while True:
                events = dict(poller.poll(_LOOK_MS))
                while (message := self._receive()) is not None:
                    self._take(message)
                if self._child.ended in events:
                    break
                watch.look(self.silent_for, self.what_runs)
            self._die(EngineDeadError(self._child.describe()))
        except Exception as error:
            get_logger("pegboard.engine").exception("the front end failed")
            self._die(EngineDeadError(f"the front end failed: {type(error).__name__}: {error}"))

    def _receive(self) -> Any:
        """A message that is there; None without one."""
        try:
            body = self._in.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        self._heard = time.monotonic()
        return read_from_engine(body)

    def _take(self, message: Any) -> None:
        if isinstance(message, Batch):
            self._working = message.busy
            self._on_batch(message)
        elif isinstance(message, Answer):
            self._resolve(message)
        elif isinstance(message, Failed):
            self._die(EngineDeadError(message.problem.text))

    def _resolve(self, answer: Answer) -> None:
        name, future = self._calls.pop(answer.number)
        if not future.set_running_or_notify_cancel():
            return  # who asked waits no more
        if answer.problem is not None:
            future.set_exception(answer.problem.error())
        else:
            future.set_result(msgspec.convert(answer.value, ANSWERS[name]))

    def _die(self, error: EngineDeadError) -> None:
        """Tell everybody who waits, once."""
        with self._sending:
            if self._dead is not None:
                return
            self._dead = EngineDeadError("this engine is closed") if self._closed else error
        self._working = False
        while self._calls:
            _, (_, future) = self._calls.popitem()
            if future.set_running_or_notify_cancel():
                future.set_exception(EngineDeadError(str(self._dead)))
        if not self._closed:
            self._on_death(self._dead)

    # Beginning and end

    def _open(self, config: EngineConfig, plan: PluginPlan) -> None:
        """Make folder, sockets and process; `_undo` lets go of what was made."""
        folder = tempfile.mkdtemp(prefix="pegboard-engine-")  # nobody else may enter it
        self._undo.callback(shutil.rmtree, folder, ignore_errors=True)
        start = _start_message(config, plan, f"ipc://{folder}/in", f"ipc://{folder}/out")
        self._context = zmq.Context()
        self._undo.callback(self._context.term)
        self._out = self._bind(zmq.PUSH, start.inbox)
        self._in = self._bind(zmq.PULL, start.outbox)
        self._child = Child(folder)
        self._undo.callback(self._bury_child)
        self._child.tell(pack(start))

    def _bind(self, kind: int, address: str) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        self._undo.callback(socket.close, linger=0)
        socket.set_hwm(0)  # each side takes what the other has to say, however much
        socket.bind(address)
        return socket

    def _poller(self) -> zmq.Poller:
        poller = zmq.Poller()
        poller.register(self._in, zmq.POLLIN)
        poller.register(self._child.ended, zmq.POLLIN)
        return poller

    def _bury_child(self) -> None:
        """End the process if it still runs, then the threads."""
        self._child.kill()
        self._child.wait()
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join()
        self._child.release()

    def _release(self) -> None:
        """Let go of everything."""
        self._undo.close()


def _ignore(_: Any) -> None:
    """Nobody listens yet."""


def _start_message(config: EngineConfig, plan: PluginPlan, inbox: str, outbox: str) -> Start:
    level = logging.getLogger("pegboard").getEffectiveLevel()
    start = Start(plain_config(config), plan, level, inbox, outbox)
    try:
        pack(start)
    except _Unsendable as error:
        raise ConfigError(
            f"a setting holds what the engine's process cannot be told: {error}; plain values can"
        ) from error
    return start
