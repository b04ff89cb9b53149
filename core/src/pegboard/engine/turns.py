"""`Turns`: one thread at a time, and each that waits gets its turn."""

from __future__ import annotations

from threading import Lock, get_ident

from pegboard.engine.interrupts import InterruptShield

__all__ = ["Turns"]

_SLICE = 0.02
"""Seconds after which a thread that waits looks for signals."""


class Turns:
    """A lock for ``with`` that a thread may enter again while it holds it.

    A thread that leaves and comes back at once, as one that steps an engine does, queues behind
    one that waits already: a plain lock would let it in first, time and again. Signal handlers wait
    for the end of the turn, or until `shield` is opened.
    """

    def __init__(self, shield: InterruptShield | None = None) -> None:
        self._shield = shield or InterruptShield()
        self._queue = Lock()
        """Held by the one thread that is next."""
        self._inside = Lock()
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        self._shield.__enter__()
        try:
            self._take()
        except BaseException:
            self._shield.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._inside.release()
        self._shield.__exit__()

    def _take(self) -> None:
        me = get_ident()
        if self._owner != me:
            self._wait_for(self._queue)
            try:
                self._wait_for(self._inside)
            finally:
                self._queue.release()
            self._owner = me
        self._depth += 1

    def _wait_for(self, lock: Lock) -> None:
        """Raises what a signal handler raises; the lock is not taken then."""
        while not lock.acquire(timeout=_SLICE):
            self._shield.deliver()
