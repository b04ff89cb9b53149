"""Steps on a thread of their own, so that the host plans while the device (or the CPU) works."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import torch

from pegboard.api.executor import Pending
from pegboard.api.step import LateInputs, StepPlan, StepResult

__all__ = ["StepThread"]

T = TypeVar("T")
LOOK_SECONDS = 0.5
"""How often a caller that waits looks for interrupts. One that comes in the moment before it begins
to wait does not wake it."""


class _Promise(Generic[T]):
    """Work that was handed over, and what came of it.

    Both hand-overs are calls of a `SimpleQueue`, which is written in C: an interrupt comes before
    or after them, never while a lock is held.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work: Callable[[], T] | None = work
        self._came: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def run(self) -> None:
        """On the thread."""
        work, self._work = self._work, None
        assert work is not None, "work is done once"
        try:
            self._came.put((work(), None))
        except BaseException as error:
            self._came.put((None, error))

    def result(self) -> T:
        """Wait, once."""
        while True:
            try:
                value, error = self._came.get(timeout=LOOK_SECONDS)
            except Empty:
                continue
            if error is not None:
                raise error
            return value  # type: ignore[return-value]


class _Line:
    """What the thread works off; knows nothing of who queues, so that that one can be forgotten."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[_Promise[Any] | None] = SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="pegboard-step", daemon=True)
        atexit.register(self.close)  # what still computes while Python is taken down may crash
        self._thread.start()

    def put(self, promise: _Promise[Any]) -> None:
        self._queue.put(promise)

    def stop(self) -> None:
        """Drop what is queued, and end the thread after what runs."""
        self._closed = True
        self._queue.put(None)

    def close(self) -> None:
        """The same, and wait for it."""
        self.stop()
        self._thread.join()

    def _serve(self) -> None:
        while (promise := self._queue.get()) is not None and not self._closed:
            promise.run()
            del promise  # with its work and what that holds
        atexit.unregister(self.close)


class StepThread:
    """Runs a runner's steps one after the other, in the order given.

    Work sees the caller's context variables, and computes with as many threads as the caller would
    (torch keeps that number per thread). Modes of torch that are per thread, such as inference
    mode, are the runner's own business. The thread ends with `close`, with this object, or with the
    interpreter.
    """

    def __init__(self, execute: Callable[[StepPlan], Pending]) -> None:
        """`execute` starts a step on the thread that calls it."""
        self._execute = execute
        self._line = _Line()
        weakref.finalize(self, self._line.stop).atexit = False

    def execute(self, plan: StepPlan) -> Pending:
        """Hand a plan over; returns at once. A failure is raised by the pending step's `result`."""
        execute = self._execute
        return _ThreadStep(self, self.submit(lambda: execute(plan)))

    def submit(self, work: Callable[[], T]) -> _Promise[T]:
        """Queue `work` behind what was handed over before."""
        threads, context = torch.get_num_threads(), copy_context()
        promise = _Promise(lambda: context.run(_with_threads, threads, work))
        self._line.put(promise)
        return promise

    def close(self) -> None:
        """Wait for the work that runs, drop what is queued, end the thread."""
        self._line.close()


class _ThreadStep:
    """`api.executor.Pending` of a step that was handed over."""

    def __init__(self, thread: StepThread, started: _Promise[Pending]) -> None:
        self._thread = thread
        self._started: _Promise[Pending] | None = started
        self._result: _Promise[StepResult] | None = None

    def sample(self, late: LateInputs) -> None:
        assert self._result is None, "a step is sampled once"
        self._result = self._thread.submit(lambda: self._finish(late))

    def result(self) -> StepResult:
        assert self._result is not None, "the step was not sampled"
        return self._result.result()

    def _finish(self, late: LateInputs) -> StepResult:
        """On the thread, behind the step's start: sample, and bring everything to the host."""
        assert self._started is not None
        # The reference is dropped so that logits do not live on while the next step runs.
        started, self._started = self._started, None
        pending = started.result()
        del started
        pending.sample(late)
        return pending.result()


def _with_threads(threads: int, work: Callable[[], T]) -> T:
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    return work()
