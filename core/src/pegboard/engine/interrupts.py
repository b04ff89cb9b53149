"""Keyboard interrupts come at any bytecode; books must not be left half changed."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

__all__ = ["InterruptShield"]


class InterruptShield:
    """A context in which an interrupt from the keyboard waits until the context is left.

    Interrupts reach the main thread only; on any other, and where nobody handles them in Python,
    this does nothing. Not reentrant. Costs about a microsecond.
    """

    def __init__(self) -> None:
        self._handler: Any = None
        self._caught: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> None:
        self._handler = self._caught = None
        if threading.current_thread() is not threading.main_thread():
            return
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            self._handler = handler
            signal.signal(signal.SIGINT, self._catch)

    def __exit__(self, *_: object) -> None:
        handler, self._handler = self._handler, None
        if handler is None:
            return
        signal.signal(signal.SIGINT, handler)
        if self._caught is not None:
            handler(*self._caught)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self._caught = (number, frame)
