"""From the steps to the stat loggers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol

from pegboard.api.scheduler import Scheduler
from pegboard.api.stat_logger import StatLogger, StatLoggerContext, StatRecorder, StepStats
from pegboard.api.step import StepPlan, StepResult
from pegboard.config.engine import EngineConfig
from pegboard.logging import get_logger
from pegboard.plugins import Board

__all__ = ["NullStats", "RecorderSink", "StatSink", "open_stats"]


class StatSink(Protocol):
    """Where figures go."""

    def record(self, plan: StepPlan, result: StepResult, scheduler: Scheduler) -> None:
        """Take notice of a step that is over."""
        ...

    def close(self) -> None: ...


class NullStats:
    """Nobody listens, and no figures are made."""

    def record(self, plan: StepPlan, result: StepResult, scheduler: Scheduler) -> None:
        return

    def close(self) -> None:
        return


class RecorderSink:
    """Hands figures to loggers. Their faults are logged, the first of each; the engine goes on."""

    def __init__(self, recorders: Sequence[tuple[str, StatRecorder]]) -> None:
        """Names and recorders, in order."""
        self._recorders = tuple(recorders)
        self._faulty: set[str] = set()
        self._log = get_logger("pegboard.engine")

    def record(self, plan: StepPlan, result: StepResult, scheduler: Scheduler) -> None:
        if not plan.rows:
            return
        stats = StepStats(
            time=time.monotonic(),
            step_id=plan.step_id,
            rows=plan.rows,
            tokens=plan.tokens,
            sampled=sum(map(len, result.token_ids)),
            failed=len(result.failed),
            scheduler=scheduler.stats(),
        )
        for name, recorder in self._recorders:
            try:
                recorder.record(stats)
            except Exception as error:
                self._complain(name, "failed", error)

    def close(self) -> None:
        for name, recorder in self._recorders:
            try:
                recorder.close()
            except Exception as error:
                self._complain(name, "failed to close", error)

    def _complain(self, name: str, what: str, error: Exception) -> None:
        if name not in self._faulty:
            self._faulty.add(name)
            self._log.error(f"a stat logger {what}", name=name, error=repr(error))


def open_stats(board: Board, config: EngineConfig) -> StatSink:
    """The engine halves of the loggers of ``config.stat_loggers``, opened.

    Raises `MissingPluginError` for a name that nobody registered, and what opening raises; those
    that are open are closed then.
    """
    names = config.stat_loggers or ()
    wanted = f"stat_loggers={list(names)!r}"
    recorders: list[tuple[str, StatRecorder]] = []
    with ExitStack() as undo:
        for name in names:
            found: StatLogger = board.require("stat_logger", name, wanted_by=wanted)
            if found.open is None:
                continue
            recorder = found.open.load()(
                StatLoggerContext(config.model, **board.handed("stat_logger", found.name))
            )
            undo.callback(recorder.close)
            recorders.append((name, recorder))
        undo.pop_all()
    return RecorderSink(recorders) if recorders else NullStats()
