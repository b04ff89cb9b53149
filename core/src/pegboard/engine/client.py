"""What a front end needs of an engine, wherever it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from pegboard.api.views import EngineRequest
from pegboard.engine.messages import Batch
from pegboard.errors import EngineDeadError

__all__ = ["EngineClient", "OnBatch", "OnDeath"]

OnBatch = Callable[[Batch], None]
"""Takes what a step brought. Called on one thread of the client's own, in the order of the
steps."""
OnDeath = Callable[[EngineDeadError], None]
"""Told once that the engine is gone though nobody closed it; nothing comes after it. On the same
thread."""


class EngineClient(Protocol):
    """The way to an engine. Every method may be called from any thread, and none waits for a step.

    What is sent arrives in the order of the calls. After the engine's end all but `close` raise
    `EngineDeadError`.
    """

    def start(self, on_batch: OnBatch, on_death: OnDeath) -> None:
        """Begin to listen. Called once, before any other method."""
        ...

    def add(self, requests: Sequence[EngineRequest]) -> None:
        """Queue requests that were checked. What the engine refuses comes in `Batch.refused`.

        Raises `RequestError` if they hold something that the engine cannot be told.
        """
        ...

    def abort(self, ids: Iterable[str]) -> None:
        """Drop requests; nothing more is told of them, but for what is on its way."""
        ...

    def finish(self, ids: Iterable[str], reason: str) -> None:
        """End requests whose end was found in their text."""
        ...

    def call(self, name: str, *values: Any) -> Future[Any]:
        """Ask for one of `pegboard.engine.messages.ANSWERS`, with its arguments."""
        ...

    @property
    def silent_for(self) -> float:
        """Seconds since the engine told anything, while it has work; 0 while it has none. One that
        works tells something after each step, at most every 0.1 s, so that much more than the
        time of a step means that it hangs."""
        ...

    def close(self, grace: float = 10.0) -> None:
        """Drop all requests and end the engine, within `grace` seconds; a second call does
        nothing."""
        ...
