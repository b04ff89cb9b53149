"""Tells a step that takes long from an engine that hangs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pegboard.logging import get_logger

__all__ = ["SilenceWatch", "processor_seconds"]

LONG = 60.0
"""Seconds of silence with work to do that are reported, and again each time they have doubled."""
_IDLE = 0.02
"""Share of one processor below which a process does nothing."""
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def processor_seconds(pids: Iterable[int]) -> float | None:
    """Seconds of processor time that processes have used so far; None where nobody tells."""
    total = 0
    try:
        for pid in pids:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            total += int(fields[11]) + int(fields[12])
    except OSError:
        return None
    return total / _TICKS


class SilenceWatch:
    """Looks, every second or so, at an engine that tells nothing.

    One that computes uses processor time: its step is long, of a long prompt for example, and that
    is a warning that says what runs. One that uses none waits for something that does not come.
    """

    def __init__(self, used: Callable[[], float | None], *, long: float = LONG) -> None:
        """`used`: seconds of processor time so far, or None."""
        self._used = used
        self._long = long
        self._next = long
        self._last = 0.0
        """Silence at the last look."""
        self._base: float | None = None
        """Processor time at the beginning of this silence."""

    def look(self, silence: float, what_runs: Callable[[], Mapping[str, Any]]) -> None:
        """`silence`: seconds that it has lasted, 0 without work."""
        if silence < self._last or not silence:
            self._next, self._base = self._long, None
        self._last = silence
        if silence and self._base is None:
            self._base = self._used()
        if silence > self._next:
            self._next *= 2
            self._report(silence, what_runs())

    def _report(self, silence: float, runs: Mapping[str, Any]) -> None:
        log, facts = get_logger("pegboard.engine"), {"seconds": round(silence), **runs}
        now = self._used()
        if now is None or self._base is None:
            log.warning("the engine is in one step for long", **facts)
            return
        used = now - self._base
        facts["processor_seconds"] = round(used, 1)
        if used > _IDLE * silence:
            log.warning("the engine is in one step for long, and computes", **facts)
        else:
            log.error("the engine is silent and does not compute: it may hang", **facts)
