"""Memory that a long text needed for a moment goes back to the system."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial

__all__ = ["allocator_trim", "give_back"]

_MANY = 20_000
"""Tokens from which on the tokeniser's memory for one text is worth the few ms of giving it
back."""


def allocator_trim() -> Callable[[], object] | None:
    """What makes the C library return what it keeps for later: glibc's ``malloc_trim``; None with
    another library."""
    try:
        return partial(ctypes.CDLL(None).malloc_trim, 0)
    except (AttributeError, OSError, TypeError):
        return None


def give_back(tokens: int, trim: Callable[[], object] | None = None) -> None:
    """Return memory after a text of so many tokens, if they were many. Blocks for some ms."""
    if tokens >= _MANY:
        work = trim or allocator_trim()
        if work is not None:
            work()
