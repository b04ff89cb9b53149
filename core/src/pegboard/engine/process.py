"""The engine's process: builds an engine, steps it as long as there is work, and waits without
polling as long as there is none."""

from __future__ import annotations

import gc
import logging
import os
import select
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from pegboard.api.executor_sleep import SleepPart
from pegboard.api.views import EngineOutput
from pegboard.config.model import resolve_model
from pegboard.config.plain import config_from_plain
from pegboard.config.plugin_policy import policy_of
from pegboard.engine.build import BuiltCore, assemble, engine_roles
from pegboard.engine.core import EngineCore
from pegboard.engine.messages import (
    Abort,
    Add,
    Answer,
    Batch,
    Call,
    Close,
    Failed,
    Finish,
    Problem,
    Progress,
    Ready,
    Start,
    pack,
    read_start,
    read_to_engine,
)
from pegboard.engine.profiling import EngineProfiler
from pegboard.errors import EngineDeadError
from pegboard.logging import LEVEL_VARIABLE, get_logger, setup_logging
from pegboard.plugins import load_plugins

__all__ = ["EngineService", "main"]

_GRACE = 2.0
"""Seconds that the engine gets to end by itself after its parent is gone."""
_LOOK = 1.0
"""Seconds between two looks whether the parent is still the same process."""
_FLUSH_MS = 2000
"""Milliseconds that last messages get to leave."""
_STATS_EVERY = 0.1
"""Seconds between two reports of a working engine."""


def main(lifeline: int, parent: int, folder: str) -> None:
    """Serve the process `parent`, which holds the other end of the pipe `lifeline`, until it says
    so or is gone. `folder` holds the sockets; a parent that is gone cannot remove it. Does not
    return."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent decides what they mean
    os.set_inheritable(lifeline, False)
    code = 1
    try:
        start = _read_start(lifeline)
        setup_logging(environ={LEVEL_VARIABLE: logging.getLevelName(start.level)})
        code = _serve(start, _Tie(lifeline, parent, folder))
    except EOFError:  # the parent went before it said anything
        shutil.rmtree(folder, ignore_errors=True)
    except BaseException:
        traceback.print_exc()
    logging.shutdown()
    os._exit(code)  # no waiting for threads of libraries


def _read_start(lifeline: int) -> Start:
    """Eight bytes of length, then the message."""
    size = int.from_bytes(_read(lifeline, 8), "little")
    return read_start(_read(lifeline, size))


def _read(lifeline: int, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = os.read(lifeline, size - len(found))
        if not part:
            raise EOFError("the parent is gone")
        found += part
    return found


class _Tie:
    """Notices the parent's end, on a thread of its own, and ends this process if the main thread
    does not, whatever it is busy with."""

    def __init__(self, lifeline: int, parent: int, folder: str) -> None:
        """`folder` holds the sockets; the parent can remove it no more."""
        self.lifeline = lifeline
        self._parent = parent
        self._folder = folder
        self.cut = False
        """The parent is gone."""
        threading.Thread(target=self._watch, name="pegboard-tie", daemon=True).start()

    def _watch(self) -> None:
        while os.getppid() == self._parent and not select.select([self.lifeline], [], [], _LOOK)[0]:
            pass  # nothing is written to the pipe, so that it is readable at its end only
        self.cut = True
        shutil.rmtree(self._folder, ignore_errors=True)
        time.sleep(_GRACE)
        os._exit(1)


class _Line:
    """The two sockets."""

    def __init__(self, start: Start, tie: _Tie) -> None:
        self._context = zmq.Context()
        self._inbox = self._context.socket(zmq.PULL)
        self._outbox = self._context.socket(zmq.PUSH)
        for socket, address in ((self._inbox, start.inbox), (self._outbox, start.outbox)):
            socket.set_hwm(0)
            socket.connect(address)
        self._poller = zmq.Poller()
        self._poller.register(self._inbox, zmq.POLLIN)
        self._poller.register(tie.lifeline, zmq.POLLIN)

    def send(self, message: msgspec.Struct, *, lenient: bool = False) -> None:
        # Copied, which takes microseconds: else pyzmq keeps a thread and a context for large ones.
        self._outbox.send(pack(message, lenient=lenient))

    def wait(self) -> None:
        """Until there is a message or the parent is gone."""
        self._poller.poll()

    def receive(self) -> bytes | None:
        """A message that is there; None without one."""
        try:
            return self._inbox.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def close(self, *, flush: bool) -> None:
        """`flush`: let what was sent leave."""
        self._inbox.close(linger=0)
        self._outbox.close(linger=_FLUSH_MS if flush else 0)
        self._context.term()


def _serve(start: Start, tie: _Tie) -> int:
    """Build, tell, serve; the exit status."""
    line = _Line(start, tie)
    service: EngineService | None = None
    try:
        built = _build(start, line)
        service = EngineService(built, line.send)
        ready = Ready(
            built.cache.num_blocks,
            {surface: list(names) for surface, names in built.used.items()},
            built.core.executor.facts(),
        )
        _settle_memory()
        line.send(ready, lenient=True)
        _loop(service, line, tie)
        service.core.close()
        return 0
    except BaseException as error:
        _complain(error, line, built=service is not None)
        return 1
    finally:
        line.close(flush=not tie.cut)


def _build(start: Start, line: _Line) -> BuiltCore:
    config = config_from_plain(start.config)
    roles = engine_roles(config, ("engine", "worker"))
    board = load_plugins(policy=policy_of(config), role=roles, plan=start.plan)

    def progress(done: int, total: int) -> None:
        line.send(Progress(done, total))

    with board.watched():
        return assemble(board, config, resolve_model(board, config), progress)


def _settle_memory() -> None:
    """What is there now stays: looking through the objects of libraries again and again would hold
    up a step by a quarter of a second each time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)  # a step of many requests makes hundreds of objects


def _loop(service: EngineService, line: _Line, tie: _Tie) -> None:
    while not (service.closing or tie.cut):
        if not service.core.has_work():
            service.rest()
            line.wait()
        while (body := line.receive()) is not None:
            service.take(body)
        service.step()


def _complain(error: BaseException, line: _Line, *, built: bool) -> None:
    """Tell the parent and the log."""
    if built:
        get_logger("pegboard.engine").exception("the engine failed")
        text = f"the engine failed in a step: {type(error).__name__}: {error}"
        line.send(Failed(Problem.of(EngineDeadError(text))))
        return
    problem = Problem.of(error)
    if problem.kind == "PegboardError":  # nobody said this on purpose
        get_logger("pegboard.engine").exception("the engine could not be built")
    line.send(Failed(problem))


class EngineService:
    """Does what messages say with an engine, and tells what came of it through `send`."""

    def __init__(self, built: BuiltCore, send: Callable[[msgspec.Struct], None]) -> None:
        self.core: EngineCore = built.core
        self.closing = False
        self._send = send
        self._reported = 0.0
        self._busy = False
        """As it was told."""
        self._profiler = EngineProfiler(len(self.core.executor.facts().get("rank_processes", ())))
        self._calls: dict[str, Callable[..., Any]] = {
            "check": self.core.scheduler.check,
            "check_sleep": self.core.check_sleep,
            "facts": self.core.executor.facts,
            "kv_event_stats": self.core.kv_event_stats,
            "metrics": built.metrics.readings,
            "reset_prefix_cache": self.core.reset_prefix_cache,
            "settle": self.core.settle,
            "sleep": self._sleep,
            "sleep_level": lambda: self.core.sleep_level,
            "start_profile": self._profiler.start,
            "stop_profile": self._profiler.stop,
            "stats": self.core.stats,
            "wake": self._wake,
        }

    def take(self, body: bytes) -> None:
        """One message of the front end."""
        message = read_to_engine(body)
        if isinstance(message, Add):
            self._add(message)
        elif isinstance(message, Abort):
            self.core.abort(message.ids)
        elif isinstance(message, Finish):
            self.core.finish(message.ids, message.reason)
        elif isinstance(message, Call):
            self._send(self._answer(message))
        else:
            assert isinstance(message, Close), message
            self.closing = True

    def step(self) -> None:
        """One step, if there is work; all that it brought goes in one message."""
        if self.closing or not self.core.has_work():
            return
        outputs = self.core.step()
        now = time.monotonic()
        due = now - self._reported >= _STATS_EVERY
        if due:
            self._reported = now
        if outputs or due:
            self._tell(Batch(outputs, stats=self.core.stats() if due else None, busy=True))

    def rest(self) -> None:
        """There is nothing to do: say so, once."""
        if self._busy:
            self._busy = False
            self._send(Batch(stats=self.core.stats()))

    def _add(self, message: Add) -> None:
        self._busy = True
        refused: dict[str, Problem] = {}
        for request in message.requests:
            try:
                self.core.add(request)
            except Exception as error:  # a fault in one request is no fault of the engine
                refused[request.request_id] = Problem.of(error)
        if refused:
            self._send(Batch(refused=refused, busy=True))

    def _sleep(self, level: int) -> None:
        self.core.check_sleep()
        gc.unfreeze()  # what goes now is not to stay because of what it is tied to
        try:
            self.core.sleep(level)
        finally:
            if not self.core.sleep_level:
                _settle_memory()
        self._send(Batch(stats=self.core.stats(), busy=self.core.has_work()))

    def _wake(self, parts: list[SleepPart]) -> bool:
        awake = self.core.wake(parts)
        if awake:
            _settle_memory()
        self._send(Batch(stats=self.core.stats()))
        return awake

    def _answer(self, call: Call) -> Answer:
        work = self._calls.get(call.name)
        if work is None:
            return Answer(call.number, problem=Problem("RequestError", f"no call {call.name!r}"))
        try:
            return Answer(call.number, msgspec.to_builtins(work(*call.values), enc_hook=str))
        except Exception as error:
            return Answer(call.number, problem=Problem.of(error))

    def _tell(self, batch: Batch) -> None:
        try:
            self._send(batch)
        except (TypeError, ValueError, OverflowError):
            batch.outputs = [self._sendable(output) for output in batch.outputs]
            self._send(batch)

    def _sendable(self, output: EngineOutput) -> EngineOutput:
        """The output, or the end of its request if it cannot be told."""
        try:
            msgspec.msgpack.encode(output)
            return output
        except (TypeError, ValueError, OverflowError) as error:
            self.core.abort([output.request_id])
            reason = f"what came of it cannot be told: {error}"
            name = output.request_id
            return EngineOutput(name, [], finish_reason="error", error=ascii(reason))
