"""Calls of a connector's scheduler half: its faults stay its own, breaches of the contract do not.

What it raises is logged, and the engine goes on as if it had nothing. `PluginError` is raised for
an answer that the contract does not allow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs

from pegboard.api.connector import (
    Allocated,
    ConnectorAbilities,
    Finished,
    Keep,
    KVTransferConfig,
    Later,
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
from pegboard.errors import PluginError
from pegboard.logging import get_logger

__all__ = ["Connected"]

T = TypeVar("T")
_NOTHING: MatchAnswer = Now(0)


@attrs.frozen(eq=False)
class Connected:
    """A connector's scheduler half with what the scheduler must know of it."""

    half: SchedulerHalf
    config: KVTransferConfig
    abilities: ConnectorAbilities = attrs.field(factory=ConnectorAbilities)
    clock: Callable[[], float] = time.monotonic
    """Seconds; time limits are measured by it."""

    @property
    def name(self) -> str:
        return self.config.kv_connector

    def match(self, question: Match) -> MatchAnswer:
        """The answer to a match; a miss if the half breaks down."""
        answer: Any = self._call("match", lambda: self.half.match(question), _NOTHING)
        if not isinstance(answer, (Pending, Now, Later)):
            raise self._breach("match", answer, "Pending, Now or Later")
        if not isinstance(answer, Now):
            self._need_asynchronous(f"match answered {type(answer).__name__}")
        if not isinstance(answer, Pending) and answer.tokens < 0:
            raise self._breach("match", answer, "at least 0 tokens")
        return answer

    def allocated(self, what: Allocated) -> None:
        self._call("allocated", lambda: self.half.allocated(what), None)

    def step(self, view: StepView) -> StepOrder | None:
        """The order for the workers; None if the half breaks down."""
        order: Any = self._call("step", lambda: self.half.step(view), None)
        if order is None:
            return None
        if not isinstance(order, StepOrder):
            raise self._breach("step", order, "a StepOrder")
        if order.holds:
            self._need_asynchronous("step named holds")
        return order

    def finished(self, what: Finished) -> Keep | None:
        """What the half keeps of a request's blocks; nothing if it breaks down."""
        keep: Any = self._call("finished", lambda: self.half.finished(what), None)
        if keep is None:
            return None
        if not isinstance(keep, Keep):
            raise self._breach("finished", keep, "Keep or None")
        self._need_asynchronous("finished kept blocks")
        return keep

    def report(self, report: TransferReport) -> None:
        self._call("report", lambda: self.half.report(report), None)

    def events(self) -> list[StoreEvent]:
        return self._call("events", lambda: list(self.half.events()), [])

    def stats(self) -> Mapping[str, float]:
        return self._call("stats", lambda: dict(self.half.stats()), {})

    def reset(self, reason: str) -> None:
        self._call("reset", lambda: self.half.reset(reason), None)

    def close(self) -> None:
        self._call("close", self.half.close, None)

    def breach(self, what: str) -> PluginError:
        """The error for a broken contract."""
        return PluginError(f"KV connector {self.name!r} broke its contract: {what}")

    def _breach(self, method: str, answer: object, allowed: str) -> PluginError:
        return self.breach(f"{method} returned {answer!r}, allowed is {allowed}")

    def _need_asynchronous(self, what: str) -> None:
        if not self.abilities.asynchronous:
            raise self.breach(f"{what} without the ability 'asynchronous'")

    def _call(self, method: str, call: Callable[[], T], otherwise: T) -> T:
        try:
            return call()
        except PluginError:
            raise
        except Exception as error:
            get_logger("pegboard.connector").warning(
                "the KV connector failed",
                connector=self.name,
                call=method,
                error=f"{type(error).__name__}: {error}",
            )
            return otherwise
