"""HTTP as thin as it can be, for many requests: a benchmark measures the server and not its client,
so bytes get their time stamp before anything looks into them.

A connection is an asyncio protocol with a parser written in C. Connections are kept and used again,
as clients of a server do. There are no redirects, proxies or compressed bodies.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httptools

from pegboard_client.server import Server, ServerError

__all__ = ["Reply", "Wire"]

OnData = Callable[[bytes, float], None]
"""Is given bytes of a body, and when they came by the clock of `time.perf_counter`."""


class Reply(NamedTuple):
    """An answer that has ended; its body was handed on while it came."""

    status: int
    headers: Mapping[str, str]
    """Names in small letters."""


class Wire:
    """Connections to one server, as many as are needed at once."""

    def __init__(self, server: Server, *, connect_seconds: float = 10.0) -> None:
        parts = urlsplit(server.base)
        self._host = parts.hostname or ""
        self._socket = server.socket
        self._secure = parts.scheme == "https"
        self._port = parts.port or (443 if self._secure else 80)
        self._prefix = parts.path.rstrip("/")
        self._name = parts.netloc.rpartition("@")[2]
        self._headers = "".join(f"{k}: {v}\r\n" for k, v in server.headers.items())
        self._idle: list[_Connection] = []
        self._connect_seconds = connect_seconds

    async def post(self, path: str, body: bytes, on_data: OnData) -> Reply:
        """Send a JSON body and return the answer when it has ended.

        Raises `ServerError` if the server cannot be reached or breaks off. A kept connection that
        the server has closed meanwhile is replaced once.
        """
        head = (
            f"POST {self._prefix}{path} HTTP/1.1\r\nHost: {self._name}\r\n"
            f"{self._headers}Content-Type: application/json\r\nAccept: text/event-stream\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode("latin-1")
        while self._idle:
            kept = self._idle.pop()
            try:
                return await self._exchange(kept, head + body, on_data)
            except _StaleError:
                continue
        fresh = await self._connect()
        try:
            return await self._exchange(fresh, head + body, on_data)
        except _StaleError:
            raise ServerError("the server closed the connection without an answer") from None

    def close(self) -> None:
        """Close what is kept."""
        while self._idle:
            self._idle.pop().close()

    async def _exchange(self, connection: _Connection, data: bytes, on_data: OnData) -> Reply:
        try:
            reply = await connection.exchange(data, on_data)
        except BaseException:
            connection.close()
            raise
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.close()
        return reply

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        context = ssl.create_default_context() if self._secure else None
        opening: Any = (
            loop.create_connection(_Connection, self._host, self._port, ssl=context)
            if self._socket is None
            else loop.create_unix_connection(_Connection, self._socket)
        )
        try:
            _, connection = await asyncio.wait_for(opening, self._connect_seconds)
        except asyncio.TimeoutError:
            raise ServerError(f"{self._name} does not take connections in time") from None
        except OSError as error:
            raise ServerError(f"cannot reach {self._name}: {error}") from None
        made: _Connection = connection
        return made


class _StaleError(Exception):
    """The connection was closed before a byte of the answer came."""


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.reusable = False
        self._transport: Any = None
        self._parser: Any = None
        self._answer: asyncio.Future[Reply] | None = None
        self._headers: dict[str, str] = {}
        self._on_data: OnData | None = None
        self._now = 0.0
        self._begun = False
        self._lost = False

    async def exchange(self, data: bytes, on_data: OnData) -> Reply:
        """One request and its answer."""
        if self._lost:
            raise _StaleError
        self.reusable, self._begun, self._on_data = False, False, on_data
        self._headers = {}
        self._parser = httptools.HttpResponseParser(self)
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        return await self._answer

    def close(self) -> None:
        """At once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        self._begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ServerError(f"the server sent what is no HTTP: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost, self.reusable = True, False
        why = f": {exc}" if exc else ""
        gone = ServerError(f"the server broke its answer off{why}")
        self._fail(gone if self._begun else _StaleError())

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        """Called by the parser with what is no framing."""
        if self._on_data is not None:
            self._on_data(body, self._now)

    def on_message_complete(self) -> None:
        """Called by the parser at the end of the answer."""
        self.reusable = self._parser.should_keep_alive()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(Reply(self._parser.get_status_code(), self._headers))

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
