"""A few threads that work off tasks, the urgent ones first."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable

__all__ = ["LOAD", "REMOVE", "SAVE", "SCAN", "Pool"]

LOAD, REMOVE, SAVE, SCAN = range(4)
"""How urgent: a request waits for a load, nobody for a save."""

Task = Callable[[], None]


class Pool:
    """Tasks must not raise; one that does is logged."""

    def __init__(self, threads: int, name: str) -> None:
        self._tasks: list[tuple[int, int, Task]] = []
        self._number = 0
        self._busy = 0
        self._closed = False
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, urgency: int, task: Task) -> None:
        """Queue a task; tasks of one urgency begin in order."""
        with self._changed:
            self._number += 1
            heapq.heappush(self._tasks, (urgency, self._number, task))
            self._changed.notify_all()

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is left to do; False if that takes too long."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while self._tasks or self._busy:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def close(self) -> int:
        """End the threads after their present tasks; how many tasks are given up."""
        with self._changed:
            given_up = len(self._tasks)
            self._tasks.clear()
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=1.0)
        return given_up

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._tasks and not self._closed:
                    self._changed.wait()
                if not self._tasks:
                    return
                task = heapq.heappop(self._tasks)[2]
                self._busy += 1
            try:
                task()
            except Exception:
                logging.getLogger("pegboard.connector.filesystem").exception("a task failed")
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()
