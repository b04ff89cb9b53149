"""`Turns`: one thread at a time, and each that waits gets its turn."""

from __future__ import annotations

from threading import Lock, RLock, get_ident

__all__ = ["Turns"]


class Turns:
    """A lock for ``with`` that a thread may enter again while it holds it.

    A thread that leaves and comes back at once, as one that steps an engine does, queues behind
    one that waits already: a plain lock would let it in first, time and again.
    """

    def __init__(self) -> None:
        self._queue = Lock()
        """Held by the one thread that is next."""
        self._inside = RLock()
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        me = get_ident()
        if self._owner != me:
            with self._queue:
                self._inside.acquire()
                self._owner = me
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._inside.release()
