"""Toy engines with a KV connector, and what a test may put between connector and scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from pegboard.api.connector import (
    Allocated,
    Finished,
    Keep,
    KVTransferConfig,
    Match,
    MatchAnswer,
    Now,
    Pending,
    SchedulerHalf,
    StepOrder,
    StepView,
    StoreEvent,
    TransferReport,
)
from pegboard.plugins import Board, load_plugins
from pegboard.scheduler.guard import Connected
from pegboard.testing.toy_engine import ToyEngine
from pegboard.testing.toy_kinds import TOY_KINDS
from pegboard.testing.toy_paged import Faults, PagedToyExecutor

__all__ = ["Clock", "InsistentHalf", "connected_engine", "installed_board"]


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class InsistentHalf(SchedulerHalf):
    """Passes all calls on, but asks each question three times, and fails where it is told to.

    The answers to one question must agree, once the first of them is known.
    """

    def __init__(self, half: SchedulerHalf, fails: Callable[[str], bool] | None = None) -> None:
        """`fails` is asked before each call, by its name."""
        self.half = half
        self.counts: Counter[str] = Counter()
        """Calls, answers by their kind, and failures."""
        self._fails = fails or (lambda name: False)

    def match(self, question: Match) -> MatchAnswer:
        self._enter("match")
        answers = [self.half.match(question) for _ in range(3)]
        known = [answer for answer in answers if not isinstance(answer, Pending)]
        assert answers[3 - len(known) :] == known, f"known, then not known: {answers}"
        assert all(answer == known[0] for answer in known), f"three answers: {answers}"
        if answers[-1] != Now(0):
            self.counts[type(answers[-1]).__name__] += 1
        return answers[-1]

    def allocated(self, what: Allocated) -> None:
        self._enter("allocated")
        self.half.allocated(what)

    def step(self, view: StepView) -> StepOrder:
        self._enter("step")
        return self.half.step(view)

    def finished(self, what: Finished) -> Keep | None:
        self._enter("finished")
        return self.half.finished(what)

    def report(self, report: TransferReport) -> None:
        self._enter("report")
        self.half.report(report)

    def events(self) -> Sequence[StoreEvent]:
        return self.half.events()

    def stats(self) -> Mapping[str, float]:
        return self.half.stats()

    def reset(self, reason: str) -> None:
        self._enter("reset")
        self.half.reset(reason)

    def close(self) -> None:
        self.half.close()

    def _enter(self, name: str) -> None:
        self.counts[name] += 1
        if self._fails(name):
            self.counts["failures"] += 1
            raise OSError(f"{name} is made to fail")


def installed_board() -> Board:
    """The board of what is installed."""
    return load_plugins()


def connected_engine(
    board: Board,
    config: KVTransferConfig,
    *,
    kinds: str = "full",
    blocks: int = 64,
    poison: int | None = None,
    faults: Faults | None = None,
    fails: Callable[[str], bool] | None = None,
    clock: Clock | None = None,
    **options: Any,
) -> ToyEngine:
    """A toy engine over real storage whose scheduler half is insistent.

    `kinds` is a name of `TOY_KINDS`; `fails` as in `InsistentHalf`. Time limits are measured by
    `clock`, which stands still unless the test moves it. `options` are fields of `EngineConfig`.
    """
    executor = PagedToyExecutor(board, config, TOY_KINDS[kinds], poison=poison, faults=faults)

    def join(connected: Connected) -> Connected:
        half = InsistentHalf(connected.half, fails)
        return attrs.evolve(connected, half=half, clock=clock or Clock())

    return ToyEngine(
        blocks, executor=executor, board=board, join=join, kv_transfer_config=config, **options
    )
