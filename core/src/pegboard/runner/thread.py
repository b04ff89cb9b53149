"""Steps on a thread of their own, so that the host plans while the device (or the CPU) works."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

import torch

from pegboard.api.executor import Pending
from pegboard.api.step import LateInputs, StepPlan, StepResult

__all__ = ["StepThread"]

T = TypeVar("T")


class StepThread:
    """Runs a runner's steps one after the other, in the order given.

    Work sees the caller's context variables, and computes with as many threads as the caller would
    (torch keeps that number per thread). Modes of torch that are per thread, such as inference
    mode, are the runner's own business.
    """

    def __init__(self, execute: Callable[[StepPlan], Pending]) -> None:
        """`execute` starts a step on the thread that calls it."""
        self._execute = execute
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pegboard-step")

    def execute(self, plan: StepPlan) -> Pending:
        """Hand a plan over; returns at once. A failure is raised by the pending step's `result`."""
        return _ThreadStep(self, self.submit(lambda: self._execute(plan)))

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queue `work` behind what was handed over before."""
        threads = torch.get_num_threads()
        return self._pool.submit(copy_context().run, _with_threads, threads, work)

    def close(self) -> None:
        """Wait for the work that runs, drop what is queued, end the thread."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class _ThreadStep:
    """`api.executor.Pending` of a step that was handed over."""

    def __init__(self, thread: StepThread, started: Future[Pending]) -> None:
        self._thread = thread
        self._started: Future[Pending] | None = started
        self._result: Future[StepResult] | None = None

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
