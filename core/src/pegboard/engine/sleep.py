"""Which parts of an engine sleep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pegboard.api.executor import Executor
from pegboard.api.executor_sleep import (
    SLEEP_LEVELS,
    SLEEP_PARTS,
    SleepingExecutor,
    SleepPart,
)
from pegboard.errors import RequestError, UnsupportedError

__all__ = ["MODES", "Sleeper", "check_level", "check_mode", "check_tags"]

MODES = ("abort", "wait")
"""What becomes of requests that run when an engine is to sleep."""


def check_level(level: Any) -> int:
    """Raises `RequestError` for what is no level of sleep."""
    if not isinstance(level, int) or isinstance(level, bool) or level not in SLEEP_LEVELS:
        raise RequestError(
            f"level={level!r} is not allowed: 1 (the cache is freed, weights are kept in host "
            "memory) or 2 (weights go too)",
            field="level",
        )
    return level


def check_mode(mode: Any) -> None:
    """Raises `RequestError` for what is none of `MODES`."""
    if mode not in MODES:
        raise RequestError(
            f"mode={mode!r} is not allowed: abort (what runs ends) or wait (it goes on to its end)",
            field="mode",
        )


def check_tags(tags: Any) -> list[SleepPart]:
    """What is to wake up, in order; all of it for None. Raises `RequestError` for other names."""
    if tags is None:
        return list(SLEEP_PARTS)
    listed = isinstance(tags, Sequence) and not isinstance(tags, (str, bytes))
    if not listed or not tags or any(tag not in SLEEP_PARTS for tag in tags):
        raise RequestError(
            f"tags={tags!r} is not allowed: None, or a list of {' and '.join(SLEEP_PARTS)}",
            field="tags",
        )
    return [part for part in SLEEP_PARTS if part in tags]


class Sleeper:
    """Puts an executor to sleep and wakes it up, part by part."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._asleep: set[SleepPart] = set()
        self._wanted: set[SleepPart] = set()
        """Asleep, and asked to wake up."""
        self.level = 0
        """Of the sleep; 0 if everything is awake."""

    def check(self) -> None:
        """Raise `UnsupportedError` if it cannot sleep."""
        executor = self._executor
        problem: str | None = f"{type(executor).__name__} cannot give memory back"
        if isinstance(executor, SleepingExecutor):
            problem = executor.sleep_problem()
        if problem is not None:
            raise UnsupportedError(f"this engine cannot sleep: {problem}")

    def check_awake(self) -> None:
        """Raise `RequestError` if any part sleeps."""
        if self.level:
            parts = " and ".join(part for part in SLEEP_PARTS if part in self._asleep)
            raise RequestError(f"the engine sleeps ({parts}); wake it up first")

    def sleep(self, level: int) -> None:
        """Fall asleep, or deeper. Nothing runs, and nothing is cached."""
        self._sleeping().sleep(level)
        self._asleep, self._wanted = set(SLEEP_PARTS), set()
        self.level = max(level, self.level)

    def wake(self, parts: Sequence[SleepPart]) -> bool:
        """Wake up parts that sleep; whether everything is awake then. A cache that is asked for
        before the weights waits for them."""
        self._wanted |= self._asleep.intersection(parts)
        for part in SLEEP_PARTS:
            if part in self._wanted and (part == "weights" or "weights" not in self._asleep):
                self._sleeping().wake(part)
                self._wanted.discard(part)
                self._asleep.discard(part)
        if not self._asleep:
            self.level = 0
        return not self._asleep

    def _sleeping(self) -> SleepingExecutor:
        assert isinstance(self._executor, SleepingExecutor), "check() comes first"
        return self._executor
