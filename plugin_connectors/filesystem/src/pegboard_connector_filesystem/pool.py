"""A few threads that work off tasks, the urgent ones first."""

from __future__ import annotations

import heapq
import logging
import threading
import time
import weakref
from collections.abc import Callable

__all__ = ["LOAD", "REMOVE", "SAVE", "SCAN", "Pool"]

LOAD, REMOVE, SAVE, SCAN = range(4)
"""How urgent: a request waits for a load, nobody for a save."""

Task = Callable[[], None]


class _Tasks:
    """What the threads work off. They know this, not the pool, so that the pool can be forgotten
    and end them."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.waiting: list[tuple[int, int, Task]] = []
        self.number = 0
        self.busy = 0
        self.closed = False

    def close(self) -> int:
        """End the threads after their present tasks; how many tasks are given up."""
        with self.changed:
            given_up = len(self.waiting)
            self.waiting.clear()
            self.closed = True
            self.changed.notify_all()
        return given_up

    def work(self) -> None:
        """On each thread."""
        while True:
            with self.changed:
                while not self.waiting and not self.closed:
                    self.changed.wait()
                if not self.waiting:
                    return
                task = heapq.heappop(self.waiting)[2]
                self.busy += 1
            try:
                task()
            except Exception:
                logging.getLogger("pegboard.connector.filesystem").exception("a task failed")
            del task  # with the worker that it may belong to
            with self.changed:
                self.busy -= 1
                self.changed.notify_all()


class Pool:
    """Tasks must not raise; one that does is logged.

    The threads end with `close`, or with this object and the tasks that belong to it.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._tasks = _Tasks()
        self._threads = [
            threading.Thread(target=self._tasks.work, name=f"{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        weakref.finalize(self, self._tasks.close).atexit = False
        for thread in self._threads:
            thread.start()

    def submit(self, urgency: int, task: Task) -> None:
        """Queue a task; tasks of one urgency begin in order."""
        tasks = self._tasks
        with tasks.changed:
            tasks.number += 1
            heapq.heappush(tasks.waiting, (urgency, tasks.number, task))
            tasks.changed.notify_all()

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is left to do; False if that takes too long."""
        deadline, tasks = time.monotonic() + timeout, self._tasks
        with tasks.changed:
            while tasks.waiting or tasks.busy:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                tasks.changed.wait(left)
        return True

    def close(self) -> int:
        """End the threads after their present tasks; how many tasks are given up."""
        given_up = self._tasks.close()
        for thread in self._threads:
            thread.join(timeout=1.0)
        return given_up
