"""Pieces of a body on their way to the socket, at the cost of little more than the system call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any

try:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
except ImportError:  # without httptools
    RequestResponseCycle = None  # type: ignore[assignment, misc]

__all__ = ["Write", "begun", "body_message", "quick_write"]

Write = Callable[[bytes], Awaitable[None] | None]
"""Writes a piece that is not empty, at once (None) or when what it returns was awaited; one piece
at a time."""


def body_message(data: bytes) -> dict[str, Any]:
    """A piece of a body, as ASGI has it."""
    return {"type": "http.response.body", "body": data, "more_body": True}


def quick_write(send: Any) -> Write:
    """What `send` does with a piece of an answer that has begun, as a plain call.

    `send` must be the server's own. Where it is uvicorn's, for HTTP/1 by httptools, the message,
    the coroutine and the looking at both are saved too, which cost as much as all else in Python
    that a token needs on its way from the engine. A reader that is slow or gone is left to uvicorn.
    """

    def through(data: bytes) -> Awaitable[None] | None:
        return begun(send(body_message(data)))

    cycle = getattr(send, "__self__", None)
    if RequestResponseCycle is None or type(cycle) is not RequestResponseCycle:
        return through
    if not _takes_chunks(cycle):
        return through
    flow, write = cycle.flow, cycle.transport.write

    def straight(data: bytes) -> Awaitable[None] | None:
        if flow.write_paused or cycle.disconnected:
            return through(data)
        write(b"%x\r\n%b\r\n" % (len(data), data))
        return None

    return straight


def _takes_chunks(cycle: Any) -> bool:
    """Pieces of this answer are sent as chunks."""
    try:
        whole = cycle.response_complete or cycle.scope["method"] == "HEAD"
        return bool(cycle.response_started and cycle.chunked_encoding and not whole)
    except AttributeError:  # another version of uvicorn
        return False


def begun(work: Coroutine[Any, Any, None]) -> Awaitable[None] | None:
    """Run `work` up to where it waits; None if it never does, else what is to be awaited for its
    rest. Nothing in it may depend on the task that it begins in."""
    try:
        waits = work.send(None)
    except StopIteration:
        return None
    return _Rest(work, waits)


class _Rest:
    """What is left of work that has begun to wait."""

    def __init__(self, work: Coroutine[Any, Any, None], waits: Any) -> None:
        """`waits`: what it waits for, as the event loop is told."""
        self._work = work
        self._waits = waits

    def __await__(self) -> Generator[Any, Any, None]:
        try:
            yield self._waits
        except BaseException as error:
            with suppress(StopIteration):
                self._work.throw(error)  # it may tidy up, not go on
            raise
        yield from self._work.__await__()
