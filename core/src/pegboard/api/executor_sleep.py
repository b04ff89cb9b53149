"""What an executor has beside `pegboard.api.executor.Executor` if its engine can sleep: let go of
its memory and take it again, without another start.

An executor without it is one whose engine cannot sleep.
"""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

from pegboard.api.executor import Executor

__all__ = ["SLEEP_LEVELS", "SLEEP_PARTS", "SleepPart", "SleepingExecutor"]

SLEEP_LEVELS = (1, 2)
"""1: the cache is gone, weights are kept in the host's memory. 2: the weights are gone too."""

SleepPart = Literal["weights", "kv_cache"]
SLEEP_PARTS: tuple[SleepPart, ...] = ("weights", "kv_cache")
"""What wakes up, in the order in which it may."""


@runtime_checkable
class SleepingExecutor(Executor, Protocol):
    """Called between steps, when nothing runs and nothing is cached.

    From `sleep` until both parts are awake nothing is executed.
    """

    def sleep_problem(self) -> str | None:
        """Why it cannot sleep, for people, e.g. the platform's name; None if it can."""
        ...

    def sleep(self, level: int) -> None:
        """Give memory back, so that other processes can have it: that of the cache, and of the
        weights as far as `level` (`SLEEP_LEVELS`) says.

        A KV connector's worker half is detached. Called again in sleep, for a deeper level or after
        a part woke up.
        """
        ...

    def wake(self, part: SleepPart) -> None:
        """Make ``weights`` usable again, from the host's memory or from the checkpoint's files, or
        allocate an empty ``kv_cache`` of the same size, and warm up. The cache comes last.

        Where it raises, the part sleeps on, and may be woken again. Raises `ResourceError` if there
        is no memory, and what `load` raises.
        """
        ...
