"""Handlers of signals, without the enumerations that `signal` makes of them, which take longer than
all else that is done with a handler."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

__all__ = ["handle", "handler_of"]

_IN_C: Any = getattr(signal, "_signal", signal)

handler_of: Callable[[int], Any] = _IN_C.getsignal
"""`signal.getsignal`."""
handle: Callable[[int, Any], Any] = _IN_C.signal
"""`signal.signal`."""
