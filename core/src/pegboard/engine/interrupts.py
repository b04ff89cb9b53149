"""Signal handlers run between any two bytecodes and may raise; books and locks must not be left
half changed."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from pegboard.handlers import handle, handler_of

__all__ = ["InterruptShield"]

_Frame = FrameType | None

_NAMES = [
    "INT",
    "TERM",
    "HUP",
    "QUIT",
    "ALRM",
    "VTALRM",
    "PROF",
    "USR1",
    "USR2",
    "CHLD",
    "TSTP",
    "CONT",
    "BREAK",
]
_SIGNALS = tuple(int(getattr(signal, f"SIG{n}")) for n in _NAMES if hasattr(signal, f"SIG{n}"))
"""Those that programs handle; asking for all would take longer than a small step."""


class InterruptShield:
    """A context in which signal handlers written in Python wait until the context is left.

    Those of the usual signals (`_SIGNALS`), that is. They reach the main thread only; on any other
    this does nothing. Inside, ``with shield.opened:`` lets them run, at once what waits and then
    what comes, for work that may be given up anywhere. What a handler raises there is known by
    `caused`. Reentrant. Costs two system calls per signal that is handled.

    Where a handler that does raise comes between two of the steps below, a wrapper may stay
    installed; outside of the context it only calls what it wraps.
    """

    def __init__(self) -> None:
        self.opened = _Opened(self)
        self._wrapped: dict[int, Any] = {}
        """What the wrapper stands for, by signal."""
        self._waiting: dict[int, _Frame] = {}
        self._depth = 0
        self._open = False
        self._raised: BaseException | None = None
        self._wrapper = self._catch  # one object, so that it can be recognised

    def __enter__(self) -> None:
        if not _on_main_thread():
            return
        if not self._depth:
            self._raised = None
            self._install()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        if not _on_main_thread():
            return
        if self._depth > 1:
            self._depth -= 1
            return
        self._depth = 0
        try:
            self._restore()
        finally:
            self._run_waiting()

    def deliver(self) -> None:
        """Run the handlers that wait, on the main thread; they may raise."""
        if self._waiting and _on_main_thread():
            self._run_waiting()

    def caused(self, error: BaseException) -> bool:
        """`error` came from a signal handler, or is of a kind that no fault is reported by, such as
        `KeyboardInterrupt` or `SystemExit`."""
        return error is self._raised or not isinstance(error, Exception)

    def _install(self) -> None:
        for number in _SIGNALS:
            handler = handler_of(number)
            if callable(handler) and handler is not self._wrapper:
                self._wrapped[number] = handler
                handle(number, self._wrapper)

    def _restore(self) -> None:
        """A handler that somebody has changed meanwhile stays."""
        for number, handler in list(self._wrapped.items()):
            if handler_of(number) is self._wrapper:
                handle(number, handler)

    def _catch(self, number: int, frame: _Frame) -> None:
        if self._depth and not self._open:
            self._waiting[number] = frame
        else:
            self._run(number, frame)

    def _run_waiting(self) -> None:
        """All of them, also if one raises."""
        if self._waiting:
            number = next(iter(self._waiting))
            try:
                self._run(number, self._waiting.pop(number))
            finally:
                self._run_waiting()

    def _run(self, number: int, frame: _Frame) -> None:
        was_open, self._open = self._open, False
        try:
            self._wrapped[number](number, frame)
        except BaseException as error:
            self._raised = error  # and closed again: it is on its way to who cleans up
            raise
        self._open = was_open


class _Opened:
    """The context that `InterruptShield.opened` is."""

    def __init__(self, shield: InterruptShield) -> None:
        self._shield = shield

    def __enter__(self) -> None:
        shield = self._shield
        if shield._depth and _on_main_thread():
            shield.deliver()
            shield._open = True

    def __exit__(self, *_: object) -> None:
        if _on_main_thread():
            self._shield._open = False


def _on_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident
