"""Answers that end when the client leaves, and streams of server-sent events.

Events are written by hand: one bytes object each, without a task or a queue between the engine's
stream and the socket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import Any, Protocol, TypeVar

import attrs
import msgspec
from starlette.responses import Response

from pegboard import RequestOutput
from pegboard_server_openai.engine import Moment, Take
from pegboard_server_openai.faults import HttpError, error_body, fault_of, json_response
from pegboard_server_openai.keep_alive import KeepAlive, kept_alive
from pegboard_server_openai.scores import ScoreWriter
from pegboard_server_openai.streams import Batch, Cursor
from pegboard_server_openai.writing import Write, body_message, quick_write

__all__ = [
    "DIRECT_SEND",
    "DONE",
    "AnswerStream",
    "Choice",
    "EventStream",
    "Frame",
    "event",
    "unless_gone",
    "whole_answer",
]

_LOG = logging.getLogger("pegboard.plugin.server-openai")
_ENCODE = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"
DIRECT_SEND = "pegboard_server_openai.send"
"""Key of a scope: the server's own ``send``. Once an answer has begun, what middlewares put around
it costs each token more than its way from the engine."""
_GONE = 499
"""Of an answer that nobody reads; logs of other servers use it too."""

T = TypeVar("T")
Receive = Callable[[], Awaitable[Any]]


def event(content: Any) -> bytes:
    """One event."""
    return b"data: " + _ENCODE(content) + b"\n\n"


_MARK = "\ue000pegboard\ue000"


class Frame:
    """An event that is the same each time but for one text. Making it is several times as quick as
    making the content and encoding it."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        """`make` gives the content with a text in it."""
        whole = event(make(_MARK))
        self._before, found, self._after = whole.partition(_ENCODE(_MARK))
        assert found and _ENCODE(_MARK) not in self._after, "the text stands there once"

    def fill(self, text: str) -> bytes:
        """The event with this text."""
        return self._before + _ENCODE(text) + self._after


@attrs.define
class Choice:
    """What is kept of one choice while it is streamed."""

    cursor: Cursor
    writer: ScoreWriter | None
    frame: Frame | None = None
    """Of chunks where only the text changes, once the first was sent."""

    def more(self, text: str, shown: int) -> bytes | None:
        """The event of a choice that goes on, of whose tokens `text` shows so many, empty if that
        is nothing new; None where more than the text changes."""
        if self.frame is None:
            return None
        new = self.cursor.grow(text, shown)
        return b"" if new is None else self.frame.fill(new)


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


async def whole_answer(
    receive: Receive,
    batch: Batch,
    make: Callable[[list[RequestOutput]], Any],
    headers: dict[str, str],
) -> Response:
    """The answer that `make` gives when all of `batch` is complete, as JSON. The requests end when
    the client leaves."""
    try:
        outputs = await unless_gone(receive, batch.finished())
    finally:
        batch.close()
    return json_response(make(outputs), headers=headers)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A stream of events; `close` is called at its end, whatever that is."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes] | None,
        close: Callable[[], None],
        headers: dict[str, str] | None = None,
        keep_alive: KeepAlive | None = None,
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", **(headers or {})})
        self._keep_alive = keep_alive
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
            await unless_gone(receive, self._write(scope.get(DIRECT_SEND, send)))
        except HttpError as fault:
            if fault.status != _GONE:
                raise
        finally:
            self._close()

    async def _events_to(self, send: Any) -> None:
        assert self._events is not None
        async for data in self._events:
            await send(body_message(data))

    async def _write(self, send: Any) -> None:
        try:
            async with kept_alive(send, self._keep_alive) as sending:
                await self._events_to(sending)
        except OSError:
            return  # the client left
        except Exception as error:
            fault = fault_of(error)
            if fault.status == 500 and fault is not error:
                _LOG.exception("a stream failed")
            last = event(error_body(fault)) + DONE
            await send(body_message(last))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Answer(Protocol):
    """Makes events of the states of requests."""

    def pieces(self, place: int, output: RequestOutput) -> bytes:
        """Events of what is new in the request of one prompt; empty if nothing is."""
        ...

    def choice(self, index: int) -> Choice | None:
        """What is kept of a choice; None before its first event."""
        ...

    def last(self, outputs: Iterable[RequestOutput]) -> bytes:
        """The events at the end."""
        ...


class AnswerStream(EventStream):
    """The events of one body's answer. Between the engine's stream and the socket there is neither
    a generator nor a task to wake: each of them costs as much as the rest of a token's way."""

    def __init__(
        self,
        batch: Batch,
        answer: Answer,
        headers: dict[str, str],
        keep_alive: KeepAlive | None = None,
    ) -> None:
        super().__init__(None, batch.close, headers, keep_alive)
        self._batch = batch
        self._answer = answer

    async def _events_to(self, send: Any) -> None:
        batch, answer = self._batch, self._answer
        stream = batch.single
        if stream is None:
            async for place, output in batch.states():
                await _send(send, answer.pieces(place, output))
        else:
            await stream.feed(self._taker(quick_write(send)))
        await _send(send, answer.last(batch.latest.values()))

    def _taker(self, write: Write) -> Take:
        """Writes the events of a state, at once while the client keeps up."""
        choice: Choice | None = None

        def take(state: Moment) -> Awaitable[None] | None:
            nonlocal choice
            text, data = state.text, None
            if choice is not None and text is not None:
                data = choice.more(text, state.shown)
            if data is None:
                data = self._whole(state.output())
                choice = self._answer.choice(0)
            return write(data) if data else None

        return take

    def _whole(self, output: RequestOutput) -> bytes:
        if output.finished:
            self._batch.note(0, output)
        return self._answer.pieces(0, output)


async def _send(send: Any, data: bytes) -> None:
    if data:
        await send(body_message(data))
