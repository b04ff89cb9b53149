"""Host memory that is free inside the process but still counted as resident."""

from __future__ import annotations

import ctypes

__all__ = ["release_free_memory"]


def release_free_memory() -> None:
    """Give freed memory back to the system.

    The C library keeps what building a tokeniser or reading weights freed, tens of megabytes, for
    later use. Does nothing where the C library cannot be asked (musl, macOS, Windows).
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return
    trim(0)
