"""The process of one rank: it does what the engine's process says, with an executor of its own."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue

import attrs
import torch

from pegboard.api.executor import Pending
from pegboard.config.engine import EngineConfig
from pegboard.config.model import resolve_model
from pegboard.config.plugin_policy import policy_of
from pegboard.logging import LEVEL_VARIABLE, get_logger, setup_logging
from pegboard.plugins import Board, PluginPlan, load_plugins
from pegboard.runner import wire
from pegboard.runner.local import LocalExecutor
from pegboard.runner.place import RankPlace

__all__ = ["main"]

_WATCH = 0.5
"""Seconds between two looks for the engine's process."""


def main(descriptor: int, engine: int) -> None:
    """Serve the engine's process, of id `engine`, over the connection with this descriptor, until
    it says so or is gone. Does not return."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine's process decides what it means
    os.set_inheritable(descriptor, False)
    rank = _RankProcess(Connection(descriptor))
    threading.Thread(target=_watch, args=(engine, rank), daemon=True).start()
    try:
        rank.serve()
    except EOFError:
        rank.tidy()
    except BaseException as error:
        rank.complain(error)
        time.sleep(3600)  # the others must not see this rank go before the engine does
    os._exit(0)  # no waiting for threads of libraries, whose peers may be gone


def _watch(engine: int, rank: _RankProcess) -> None:
    """End this process with the engine's, whatever it does at the time."""
    while os.getppid() == engine:
        time.sleep(_WATCH)
    rank.tidy()
    os._exit(1)


class _RankProcess:
    """Reads messages in order on the main thread; results are waited for on another one."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._sending = threading.Lock()
        self._sampled: SimpleQueue[Pending] = SimpleQueue()
        self._started: Pending | None = None
        self._fetching: threading.Thread | None = None
        self._place = RankPlace()
        self._building = contextlib.ExitStack()
        """Until everything is built, the board watches what plugins do."""

    def serve(self) -> None:
        """Until the engine closes. Raises `EOFError` if it is gone."""
        executor = self._open()
        while (message := self._pipe.recv_bytes()) != wire.CLOSE:
            tag, body = message[:1], message[1:]
            if tag == wire.PLAN:
                self._started = executor.execute(wire.read_plan(body))
            elif tag == wire.SAMPLE:
                started, self._started = self._started, None
                assert started is not None, "a step is started, then sampled"
                started.sample(wire.read_late(body))
                self._sampled.put(started)
                self._start_fetching(executor.device)
            else:
                number, name, values = wire.unpack(body)
                answer = getattr(executor, name)(*values)
                if name == "warm_up":
                    self._building.close()
                self._say(wire.pack(wire.ANSWER, (number, answer)))
        executor.close()

    def complain(self, error: BaseException) -> None:
        """Tell what went wrong."""
        trace = "".join(traceback.format_exception(error))
        self._say(wire.fault(error, trace))

    def tidy(self) -> None:
        """Take away the meeting place, which the engine can do no more."""
        meeting = Path(self._place.address)
        if self._place.address:
            with contextlib.suppress(OSError):  # another rank did it
                meeting.unlink(missing_ok=True)
                meeting.parent.rmdir()

    def _open(self) -> LocalExecutor:
        config, plan, place, level = wire.unpack(self._pipe.recv_bytes()[1:])
        self._place = place
        _set_up_log(place, level)
        own = _own_config(config)
        board = load_plugins(policy=policy_of(own), role="worker", plan=plan)
        _tell(board, plan)
        self._building.enter_context(board.watched())
        progress = self._progress if place.rank == 0 else None
        return LocalExecutor(board, own, resolve_model(board, own), progress=progress, place=place)

    def _progress(self, done: int, total: int) -> None:
        self._say(wire.pack(wire.ANSWER, (-1, (done, total))))

    def _say(self, message: bytes) -> None:
        with self._sending:
            self._pipe.send_bytes(message)

    def _start_fetching(self, device: torch.device) -> None:
        if self._fetching is None:
            self._fetching = threading.Thread(
                target=self._fetch, args=(device,), name="pegboard-results", daemon=True
            )
            self._fetching.start()

    def _fetch(self, device: torch.device) -> None:
        """On a thread of its own, so that the next step can be started meanwhile."""
        try:
            if device.index is not None:  # a thread begins on the first device, which is another's
                torch.accelerator.set_device_index(device.index)
            while True:
                result = self._sampled.get().result()
                if self._place.rank == 0:
                    self._say(wire.result(result))
        except BaseException as error:
            with contextlib.suppress(OSError):  # the engine is gone, and this process ends with it
                self.complain(error)


def _own_config(config: EngineConfig) -> EngineConfig:
    """What a rank needs: no thread for steps, for it plans none meanwhile. It makes a tokeniser
    only where a logits processor asks for one."""
    return attrs.evolve(config, async_scheduling=False, kv_events_config=None)


def _set_up_log(place: RankPlace, level: int) -> None:
    """As the engine's process; what all ranks would say alike, rank 0 says."""
    if place.rank:
        level = max(level, logging.WARNING)
    setup_logging(environ={LEVEL_VARIABLE: logging.getLevelName(level)})


def _tell(board: Board, plan: PluginPlan) -> None:
    """Of plugins that are for workers only, the engine's process knows nothing."""
    unused = {planned.id for planned in plan.plugins if planned.state == "unused"}
    for record in board.plugins:
        if record.id in unused and record.state != "ready":
            text = f"plugin {record} is {record.state}: {record.reason}"
            get_logger("pegboard.plugins").warning(text)
