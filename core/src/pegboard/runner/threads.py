"""How many threads the host works with while an engine is built."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

__all__ = ["few_threads"]

SMALL_BYTES = 1 << 30
"""Weights below which one thread is enough to load a model and to try its smallest step."""


@contextlib.contextmanager
def few_threads(weight_bytes: int) -> Iterator[None]:
    """One thread for what follows, if the model is small.

    Loading is thousands of short operations. Between them the other threads spin, and where
    something else runs on their processors, so does the one that waits for them: most of the time
    of a small model's start was spent so.
    """
    threads = torch.get_num_threads()
    if weight_bytes >= SMALL_BYTES or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
