"""The scheduler without a KV connector: nothing comes from outside and nothing goes there."""

from __future__ import annotations

from collections.abc import Iterator

from pegboard.api.connector import ConnectorStep
from pegboard.api.step import StepResult
from pegboard.api.views import EngineOutput
from pegboard.kv import Beginning, Block, Fork
from pegboard.scheduler.draft import Record
from pegboard.scheduler.request import Request

__all__ = ["NoTransfers"]


class NoTransfers:
    """What the scheduler tells and asks; see `pegboard.scheduler.transfers`."""

    @property
    def saves(self) -> bool:
        """Complete blocks are wanted, see `advanced`."""
        return False

    @property
    def busy(self) -> bool:
        """Transfers go on, so that steps must too, also without rows."""
        return False

    def look(self, request: Request, given: Beginning) -> Beginning | bool:
        """What a waiting request can begin with, `given` being what the own cache or a parent has.

        True if it stepped aside and the queue may be looked at again, False if nobody else is to
        start in this step.
        """
        return given

    def started(self, request: Request, given: Beginning, step_id: int) -> None:
        """A request starts with this step, from what `look` returned or less."""

    def withdraw(self) -> None:
        """The request that `look` was asked about last does not start with its answer."""

    def advanced(self, request: Request, before: int) -> None:
        """A step is over: the computed tokens of a request were `before` and are more now."""

    def preempted(self, request: Request) -> None:
        """A request gave up its blocks."""

    def ended(self, request: Request, reason: str) -> None:
        """A request ends; its blocks, if it runs, are about to be freed."""

    def step(self, record: Record) -> ConnectorStep | None:
        """The plan's part for the connector's workers."""
        return None

    def take(self, record: Record, result: StepResult) -> list[EngineOutput]:
        """Take the report of a step, before its rows; last outputs of requests that it ends."""
        return []

    def loading(self) -> Iterator[Request]:
        """Requests in the room `Status.LOADING`."""
        return iter(())

    def forks(self) -> list[Fork]:
        """References held by loads."""
        return []

    def blocks(self) -> list[Block]:
        """Further blocks referenced, one entry per reference."""
        return []

    def stats(self) -> dict[str, float]:
        """The connector's own figures."""
        return {}

    def reset(self, reason: str) -> None:
        """What is stored outside is to be forgotten too."""
