"""What a stream says while there is nothing to say, so that nobody on the way takes it for dead."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import attrs

__all__ = ["COMMENT", "KeepAlive", "kept_alive"]

COMMENT = b": keep-alive\n\n"
"""Readers of server-sent events pass over it."""


@attrs.frozen
class KeepAlive:
    """How a stream is kept alive."""

    seconds: float
    """Of silence, after which it says something."""
    make: Callable[[], bytes] = lambda: COMMENT
    """What it says then."""


@contextlib.asynccontextmanager
async def kept_alive(send: Any, how: KeepAlive | None) -> AsyncIterator[Any]:
    """A `send` for the body of one answer, which has begun. Without `how` it is the same one: each
    token would pay for what is around it."""
    if how is None:
        yield send
        return
    loop = asyncio.get_running_loop()
    spoke = loop.time()

    async def watched(message: Any) -> None:
        nonlocal spoke
        await send(message)
        spoke = loop.time()

    async def beat() -> None:
        while True:
            rest = spoke + how.seconds - loop.time()
            if rest > 0:
                await asyncio.sleep(rest)
            else:
                data = how.make()
                await watched({"type": "http.response.body", "body": data, "more_body": True})

    beating = asyncio.ensure_future(beat())
    try:
        yield watched
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
