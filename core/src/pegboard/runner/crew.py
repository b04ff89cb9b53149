"""The processes of several ranks, as the engine's process sees them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from pegboard.api.step import LateInputs, StepPlan, StepResult
from pegboard.config.engine import EngineConfig
from pegboard.errors import EngineDeadError, PegboardError
from pegboard.logging import get_logger
from pegboard.plugins.plan import PluginPlan
from pegboard.runner import wire
from pegboard.runner.place import RankPlace

__all__ = ["Crew"]

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from pegboard.runner.rank import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)
_PATIENCE = 5.0
"""Seconds that ranks get to end by themselves."""
_GRACE = 0.2
"""Seconds in which a dead rank shows, after another one complained."""


class _Rank:
    """One process and the connection to it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pipe, theirs = Pipe()
        words = [json.dumps(sys.path), str(theirs.fileno()), str(os.getpid())]
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-c", _START, *words],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )

    def end(self) -> str:
        """How the process ended, for people; waits for it."""
        code = self.process.wait()
        name = f"rank {self.number} (process {self.process.pid})"
        if code >= 0:
            return f"{name} ended with exit status {code}"
        return f"{name} was ended by signal {signal.Signals(-code).name}"


def _give(rank: _Rank, message: bytes) -> None:
    """Send, unless the rank is gone, which whoever receives notices."""
    with contextlib.suppress(OSError):
        rank.pipe.send_bytes(message)


class Crew:
    """Starts the ranks, sends all of them the same messages and collects what they say.

    Two threads do the sending and receiving, so that an interrupt of the caller never cuts a
    message in two; the caller waits at a queue. After a fault, which ends all ranks, every call
    raises it.
    """

    def __init__(self, config: EngineConfig, plan: PluginPlan) -> None:
        self._owner = os.getpid()
        self._folder = tempfile.mkdtemp(prefix="pegboard-ranks-")
        self._answers: SimpleQueue[tuple[int, int, Any]] = SimpleQueue()
        """(rank, number of the call, answer); rank -1 tells of a fault, number -1 of progress."""
        self._results: SimpleQueue[StepResult | None] = SimpleQueue()
        """None tells of a fault."""
        self._messages: SimpleQueue[bytes | None] = SimpleQueue()
        self._fault: PegboardError | None = None
        self._closing = False
        self._calls = 0
        self._ranks: list[_Rank] = []
        world = config.tensor_parallel_size
        address = str(Path(self._folder, "meeting"))
        try:
            self._ranks += (_Rank(number) for number in range(world))
            for rank in self._ranks:
                place = RankPlace(rank.number, world, address)
                _give(rank, wire.pack(wire.START, (config, plan, place, wire.log_level())))
        except BaseException:
            self._kill()
            raise
        self._threads = [
            threading.Thread(target=work, name=f"pegboard-ranks-{name}", daemon=True)
            for name, work in (("send", self._send), ("receive", self._receive))
        ]
        for thread in self._threads:
            thread.start()

    def ask(
        self, name: str, *values: Any, progress: Callable[[int, int], Any] | None = None
    ) -> list[Any]:
        """Let every rank call the method `name` of its executor; their answers. `progress` is
        called with what rank 0 tells meanwhile."""
        self._calls += 1
        self._messages.put(wire.pack(wire.CALL, (self._calls, name, values)))
        answers: dict[int, Any] = {}
        while len(answers) < len(self._ranks):
            rank, number, answer = self._answers.get()
            if rank < 0:
                self._answers.put((rank, number, answer))
                raise self._dead()
            if number < 0 and progress is not None:
                progress(*answer)
            elif number == self._calls:
                answers[rank] = answer
        return [answers[rank.number] for rank in self._ranks]

    def processes(self) -> list[int]:
        """Process ids by rank."""
        return [rank.process.pid for rank in self._ranks]

    def plan(self, plan: StepPlan) -> None:
        """Start a step."""
        self._messages.put(wire.step(plan))

    def sample(self, late: LateInputs) -> None:
        """Let the step that was started last be sampled."""
        self._messages.put(wire.late(late))

    def result(self, step_id: int) -> StepResult:
        """Wait for the result of a step; those of steps that were given up before are dropped."""
        while True:
            result = self._results.get()
            if result is None:
                self._results.put(None)
                raise self._dead()
            if result.step_id == step_id:
                return result

    def close(self) -> None:
        """End the ranks and the threads. In a forked child it does nothing."""
        if self._closing or os.getpid() != self._owner:
            return
        self._closing = True
        self._messages.put(wire.CLOSE)
        self._messages.put(None)
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline and self._alive():
            time.sleep(0.01)
        self._kill()
        for thread in self._threads:
            thread.join()
        for rank in self._ranks:
            rank.pipe.close()

    def _alive(self) -> bool:
        return any(rank.process.poll() is None for rank in self._ranks)

    def _kill(self) -> None:
        """End what still runs, and collect it."""
        for rank in self._ranks:
            if rank.process.poll() is None:
                rank.process.kill()
        for rank in self._ranks:
            rank.process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _dead(self) -> PegboardError:
        assert self._fault is not None
        return self._fault

    def _send(self) -> None:
        """On the sending thread."""
        while (message := self._messages.get()) is not None:
            for rank in self._ranks:
                _give(rank, message)

    def _receive(self) -> None:
        """On the receiving thread, until a rank's connection ends or there is a fault."""
        by_pipe = {rank.pipe: rank for rank in self._ranks}
        pipes: list[Connection] = list(by_pipe)
        while self._fault is None:
            for pipe in wait(pipes):
                rank = by_pipe[pipe]  # type: ignore[index]
                try:
                    message = rank.pipe.recv_bytes()
                except (EOFError, OSError):
                    if self._closing:
                        return
                    self._fail(EngineDeadError(rank.end()))
                    return
                self._take(rank, message)

    def _take(self, rank: _Rank, message: bytes) -> None:
        tag, body = message[:1], message[1:]
        if tag == wire.RESULT:
            self._results.put(wire.read_result(body))
        elif tag == wire.ANSWER:
            number, answer = wire.unpack(body)
            self._answers.put((rank.number, number, answer))
        elif not self._closing:
            error, trace = wire.unpack(body)
            self._fail(error or EngineDeadError(f"rank {rank.number} failed:\n{trace}"))

    def _fail(self, fault: PegboardError) -> None:
        """End everything; whoever waits is told. Where a rank died, others complain of it, perhaps
        before it shows: the death is the cause."""
        time.sleep(_GRACE)
        ends = [rank.end() for rank in self._ranks if rank.process.poll() is not None]
        if ends and ends[0] not in str(fault):
            fault = EngineDeadError(f"{ends[0]}; {fault}")
        self._fault = fault
        self._kill()
        get_logger("pegboard.runner").error("a rank failed", reason=str(fault))
        self._results.put(None)
        self._answers.put((-1, 0, None))
