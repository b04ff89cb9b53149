"""Answers that end when the client leaves, and streams of server-sent events.

Events are written by hand: one bytes object each, without a task or a queue between the engine's
stream and the socket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response

from pegboard_server_openai.faults import HttpError, error_body, fault_of

__all__ = ["DONE", "EventStream", "event", "unless_gone"]

_LOG = logging.getLogger("pegboard.plugin.server-openai")
_ENCODE = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"
_GONE = 499
"""Of an answer that nobody reads; logs of other servers use it too."""

T = TypeVar("T")
Receive = Callable[[], Awaitable[Any]]


def event(content: Any) -> bytes:
    """One event."""
    return b"data: " + _ENCODE(content) + b"\n\n"


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client leaves. The body must have been
    read. Raises `HttpError` 499 then."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise HttpError(_GONE, "the client has left")
    finally:
        watch.cancel()
        task.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A stream of events; `close` is called at its end, whatever that is."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        close: Callable[[], None],
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", **(headers or {})})
        del self.headers["content-length"]
        self._events = events
        self._close = close

    async def __call__(self, scope: Any, receive: Receive, send: Any) -> None:
        start = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        try:
            await send(start)
            await unless_gone(receive, self._write(send))
        except HttpError as fault:
            if fault.status != _GONE:
                raise
        finally:
            self._close()

    async def _write(self, send: Any) -> None:
        try:
            async for data in self._events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except OSError:
            return  # the client left
        except Exception as error:
            fault = fault_of(error)
            if fault.status == 500 and fault is not error:
                _LOG.exception("a stream failed")
            last = event(error_body(fault)) + DONE
            await send({"type": "http.response.body", "body": last, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
