"""Pieces of streams on their way to the socket: by a plain call, at once, and without harm to slow
readers, whatever the socket is."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import attrs
import pytest
import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from pegboard import CompletionOutput
from pegboard_server_openai.options import ServerOptions
from pegboard_server_openai.running import listen
from pegboard_server_openai.sse import Choice, Frame
from pegboard_server_openai.streams import Cursor
from pegboard_server_openai.writing import begun, body_message, quick_write

PIECE = b"x" * 65_000
OPENSSL = shutil.which("openssl")
NEW_LOOP: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@attrs.define
class Site:
    """An answer that a test writes, and what it noticed."""

    write: Callable[[Any], Coroutine[Any, Any, None]]
    nodelay: list[int] = attrs.field(factory=list)
    ended: asyncio.Event = attrs.field(factory=asyncio.Event)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        end = send.__self__.transport.get_extra_info("socket")
        if end.family != socket.AF_UNIX:
            self.nodelay.append(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            await self.write(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self.ended.set()


@contextlib.asynccontextmanager
async def served(site: Site, sock: socket.socket, **options: Any) -> Any:
    usual = {"lifespan": "off", "log_level": "warning", "timeout_graceful_shutdown": 1}
    config = uvicorn.Config(site, http="httptools", **usual, **options)
    server = uvicorn.Server(config)
    task = asyncio.ensure_future(server._serve(sockets=[sock]))
    while not server.started:
        assert not task.done(), "the server did not start"
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        server.should_exit = True
        await task


def listening(uds: Path | None = None) -> socket.socket:
    """As of ``pegboard serve``."""
    return listen(ServerOptions(host="127.0.0.1", port=0, uds=uds and str(uds)))


async def ask(sock: socket.socket, tls: ssl.SSLContext | None = None) -> Any:
    """Reader and writer behind the head of the answer."""
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        reader, writer = await asyncio.open_unix_connection(name)
    else:
        reader, writer = await asyncio.open_connection(*name, ssl=tls)
    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    return reader, writer


async def body(reader: asyncio.StreamReader) -> bytes:
    found = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        found += (await reader.readexactly(size + 2))[:-2]
    return found


def run(work: Coroutine[Any, Any, None], loop: str = "uvloop") -> None:
    made = NEW_LOOP[loop]()
    try:
        made.run_until_complete(asyncio.wait_for(work, 20))
    finally:
        made.close()


async def three_pieces(send: Any) -> None:
    write = quick_write(send)
    for data in (b"a", "\u00e9".encode(), b"c" * 300):
        assert write(data) is None
        await asyncio.sleep(0)


def certified(folder: Path) -> dict[str, str]:
    """A certificate of our own."""
    key, cert = str(folder / "key.pem"), str(folder / "cert.pem")
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=a"
    assert OPENSSL is not None
    command = [OPENSSL, *words.split(), "-keyout", key, "-out", cert]
    subprocess.run(command, check=True, capture_output=True)
    return {"ssl_keyfile": key, "ssl_certfile": cert}


@pytest.mark.parametrize("loop", NEW_LOOP)
@pytest.mark.parametrize(
    "kind",
    [
        "tcp",
        pytest.param("tls", marks=pytest.mark.skipif(OPENSSL is None, reason="needs openssl")),
        "unix",
    ],
)
def test_pieces_are_not_held_back_by_the_system_and_arrive_whole(
    kind: str, loop: str, tmp_path: Path
) -> None:
    async def main() -> None:
        site, options, tls = Site(three_pieces), {}, None
        sock = listening(tmp_path / "s" if kind == "unix" else None)
        if kind == "tls":
            options = certified(tmp_path)
            tls = ssl.create_default_context()
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        async with served(site, sock, **options):
            reader, writer = await ask(sock, tls)
            assert await body(reader) == b"a\xc3\xa9" + b"c" * 300
            writer.close()
        assert all(site.nodelay) and bool(site.nodelay) == (kind != "unix")

    run(main(), loop)


def test_nothing_of_the_server_but_its_transport_is_called_for_a_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    real = RequestResponseCycle.send

    async def counted(self: Any, message: Any) -> None:
        calls.append(message["type"])
        await real(self, message)

    monkeypatch.setattr(RequestResponseCycle, "send", counted)

    async def main() -> None:
        sock = listening()
        async with served(Site(three_pieces), sock):
            reader, writer = await ask(sock)
            assert len(await body(reader)) == 303
            writer.close()

    run(main())
    assert calls == ["http.response.start", "http.response.body"], "the start and the end"


def test_other_servers_get_messages() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    write = quick_write(send)
    assert write(b"a") is None and write(b"b") is None
    assert sent == [body_message(b"a"), body_message(b"b")]


class Flood:
    """Writes until the reader is too slow, and then once more when it is not."""

    def __init__(self) -> None:
        self.count = 0
        self.full = asyncio.Event()

    async def __call__(self, send: Any) -> None:
        write = quick_write(send)
        late: Awaitable[None] | None = None
        try:
            while late is None:
                self.count += 1
                assert self.count < 2000, "nobody holds it back"
                late = write(b"%08d" % self.count + PIECE)
                await asyncio.sleep(0)
        finally:
            self.full.set()
        await late
        assert write(b"end") is None


def test_a_slow_reader_is_waited_for_and_loses_nothing() -> None:
    async def main() -> None:
        flood, sock = Flood(), listening()
        async with served(Site(flood), sock):
            reader, writer = await ask(sock)
            await flood.full.wait()
            found = await body(reader)
            wanted = b"".join(b"%08d" % n + PIECE for n in range(1, flood.count + 1))
            assert found == wanted + b"end"
            writer.close()

    run(main())


def test_a_slow_reader_that_leaves_ends_the_wait() -> None:
    async def main() -> None:
        flood, sock = Flood(), listening()
        site = Site(flood)
        async with served(site, sock):
            _, writer = await ask(sock)
            await flood.full.wait()
            await asyncio.sleep(0)
            assert not site.ended.is_set()
            writer.transport.abort()
            await site.ended.wait()

    run(main())


def test_pieces_for_one_who_has_left_go_nowhere() -> None:
    written: list[Any] = []

    async def main() -> None:
        gone = asyncio.Event()

        async def late(send: Any) -> None:
            write = quick_write(send)
            await gone.wait()
            written.extend(write(b"a") for _ in range(3))

        site, sock = Site(late), listening()
        async with served(site, sock):
            _, writer = await ask(sock)
            writer.transport.abort()
            await asyncio.sleep(0.1)
            gone.set()
            await site.ended.wait()

    run(main())
    assert written == [None] * 3


def test_a_choice_sends_what_is_new_and_nothing_while_nothing_is_shown() -> None:
    choice = Choice(Cursor(), None)
    item = CompletionOutput(0, "ab", [1, 2], num_shown=2)
    assert choice.more("ab", 2) is None, "there is no frame yet"
    assert choice.cursor.take(item) is not None
    choice.frame = Frame(lambda text: {"text": text, "more": 1})
    assert choice.more("ab", 2) == b"", "text that may begin a stop string is held back"
    assert choice.more('ab"c', 3) == b'data: {"text":"\\"c","more":1}\n\n'
    assert choice.more('ab"c', 4) == b'data: {"text":"","more":1}\n\n', "half a character"
    item = CompletionOutput(0, 'ab"c\u00e9', [1, 2, 3, 4, 5], finish_reason="stop", num_shown=5)
    news = choice.cursor.take(item)
    assert news is not None and (news.text, news.ids) == ("\u00e9", [5])


def test_the_rest_of_begun_work_is_called_off_with_its_task() -> None:
    async def main() -> None:
        tidied = []

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                tidied.append(True)

        late = begun(work())
        assert late is not None

        async def waits() -> None:
            await late

        task = asyncio.ensure_future(waits())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert tidied == [True]

    run(main())
