"""The thin HTTP client of the benchmark, against a socket that answers as it is told to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pegboard_client.load import Load
from pegboard_client.server import Server, ServerError
from pegboard_client.wire import Wire

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter, bytes], Awaitable[None]]


def chunk(text: str) -> bytes:
    data = text.encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(text: str) -> bytes:
    return chunk(f'data: {{"choices": [{{"text": "{text}"}}]}}\n\n')


class Socket:
    """Reads requests and hands them to `answer`."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.heads: list[str] = []
        self.opened = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                size = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0])
                await self.answer(reader, writer, await reader.readexactly(size))
                await writer.drain()
        except (asyncio.CancelledError, asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()


def talk(answer: Answer, work: Callable[[Wire, Socket], Awaitable[Any]], path: str = "") -> Any:
    async def run() -> Any:
        socket = Socket(answer)
        server = await asyncio.start_server(socket.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        wire = Wire(Server.at(f"http://127.0.0.1:{port}{path}", "secret"))
        try:
            return await asyncio.wait_for(work(wire, socket), 10)
        finally:
            wire.close()
            server.close()

    return asyncio.run(run())


async def whole(_: Any, writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(HEAD + chunk("got ") + chunk(body.decode()) + b"0\r\n\r\n")


async def ask(wire: Wire, body: bytes = b"{}") -> tuple[int, bytes]:
    got: list[bytes] = []
    reply = await wire.post("/v1/x", body, lambda data, now: got.append(data))
    assert reply.headers["transfer-encoding"] == "chunked"
    return reply.status, b"".join(got)


def test_a_body_is_sent_and_its_answer_read_without_framing() -> None:
    async def work(wire: Wire, socket: Socket) -> None:
        assert await ask(wire, "ä".encode()) == (200, "got ä".encode())
        head = socket.heads[0]
        assert head.startswith("POST /prefix/v1/x HTTP/1.1\r\nHost: 127.0.0.1:")
        assert "\r\nAuthorization: Bearer secret\r\n" in head

    talk(whole, work, path="/prefix/v1")


def test_a_connection_is_used_again() -> None:
    async def work(wire: Wire, socket: Socket) -> None:
        for _ in range(5):
            await ask(wire)
        assert socket.opened == 1
        await asyncio.gather(*(ask(wire) for _ in range(3)))
        assert socket.opened == 3

    talk(whole, work)


def test_a_kept_connection_that_was_closed_is_replaced() -> None:
    async def once(reader: Any, writer: asyncio.StreamWriter, body: bytes) -> None:
        await whole(reader, writer, body)
        await writer.drain()
        writer.close()

    async def work(wire: Wire, socket: Socket) -> None:
        for _ in range(3):
            assert (await ask(wire))[0] == 200
            await asyncio.sleep(0.05)
        assert socket.opened == 3

    talk(once, work)


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"", "without an answer"),
        (HEAD + event("a"), "broke its answer off"),
        (b"nonsense\r\n\r\n", "no HTTP"),
    ],
)
def test_an_answer_that_breaks_off_is_an_error(sent: bytes, told: str) -> None:
    async def broken(_: Any, writer: asyncio.StreamWriter, body: bytes) -> None:
        writer.write(sent)
        await writer.drain()
        writer.close()

    async def work(wire: Wire, socket: Socket) -> None:
        with pytest.raises(ServerError, match=told):
            await ask(wire)
        assert (await Load(wire, "/v1/x").ask(b"{}")).error

    talk(broken, work)


def test_no_server_is_an_error() -> None:
    async def work() -> None:
        with pytest.raises(ServerError, match="cannot reach"):
            await ask(Wire(Server.at("http://127.0.0.1:1")))

    asyncio.run(work())


def test_times_are_those_at_which_pieces_came() -> None:
    async def slowly(_: Any, writer: asyncio.StreamWriter, body: bytes) -> None:
        await asyncio.sleep(0.1)
        writer.write(HEAD + event("a"))
        for word in ("b", "c"):
            await asyncio.sleep(0.06)
            writer.write(event(word)[:9])
            await asyncio.sleep(0.02)
            writer.write(event(word)[9:])
        usage = '{"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 6}}'
        await asyncio.sleep(0.1)
        writer.write(chunk(f"data: {usage}\n\ndata: [DONE]\n\n") + b"0\r\n\r\n")

    async def work(wire: Wire, socket: Socket) -> None:
        begin = time.perf_counter()
        record = await Load(wire, "/v1/x").ask(b"{}")
        assert 0 <= record.sent - begin < 0.05
        assert record.error == ""
        assert 0.1 <= record.ttft < 0.3
        # A piece that was read late makes the next gap shorter, never the sum.
        assert len(record.gaps) == 2 and all(0.03 <= gap < 0.2 for gap in record.gaps)
        assert record.e2el >= 0.25
        assert record.e2el == pytest.approx(record.ttft + sum(record.gaps))
        assert (record.input_tokens, record.output_tokens, record.counted) == (4, 6, True)
        assert record.tpot == pytest.approx(sum(record.gaps) / 5)

    talk(slowly, work)


def test_errors_inside_and_instead_of_a_stream_are_told() -> None:
    answers = [
        b'HTTP/1.1 404 No\r\nContent-Length: 34\r\n\r\n{"error": {"message": "no model"}}',
        HEAD + event("a") + chunk('data: {"error": {"message": "it died"}}\n\n') + b"0\r\n\r\n",
        HEAD + chunk('{"choices": []}') + b"0\r\n\r\n",
        HEAD + chunk("data: nonsense\n\n") + b"0\r\n\r\n",
    ]

    async def next_one(_: Any, writer: asyncio.StreamWriter, body: bytes) -> None:
        writer.write(answers.pop(0))

    async def work(wire: Wire, socket: Socket) -> list[str]:
        load = Load(wire, "/v1/x")
        return [(await load.ask(b"{}")).error for _ in range(4)]

    errors = talk(next_one, work)
    assert errors[:3] == [
        "status 404: no model",
        "it died",
        "the answer has no chunk, or was not streamed",
    ]
    assert errors[3].startswith("the server sent what is no chunk")


def test_an_answer_that_shows_nothing_is_measured_by_its_chunks() -> None:
    async def silent(_: Any, writer: asyncio.StreamWriter, body: bytes) -> None:
        writer.write(HEAD + chunk('data: {"choices": [{"delta": {"role": "assistant"}}]}\n\n'))
        await asyncio.sleep(0.05)
        end = '{"choices": [{"delta": {}, "finish_reason": "length"}]}'
        usage = '{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 3}}'
        writer.write(chunk(f"data: {end}\n\ndata: {usage}\n\n") + b"0\r\n\r\n")

    async def work(wire: Wire, socket: Socket) -> None:
        record = await Load(wire, "/v1/x").ask(b"{}")
        assert record.error == "" and record.output_tokens == 3
        assert 0 < record.ttft <= record.e2el - 0.04

    talk(silent, work)


@pytest.mark.parametrize("limit", [None, 2])
def test_a_load_keeps_its_schedule_and_its_limit(limit: int | None) -> None:
    running, most = 0, 0

    async def slow(_: Any, writer: asyncio.StreamWriter, body: bytes) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.15)
        running -= 1
        writer.write(HEAD + event("a") + b"0\r\n\r\n")

    async def work(wire: Wire, socket: Socket) -> Any:
        times = [0.0, 0.02, 0.04, 0.06]
        return await Load(wire, "/v1/x", limit).run([b"{}"] * 4, times, open_loop=True)

    outcome = talk(slow, work)
    planned = [record.scheduled - outcome.begin for record in outcome.records]
    assert planned == pytest.approx([0.0, 0.02, 0.04, 0.06])
    lags = [record.sent - record.scheduled for record in outcome.records]
    if limit is None:
        assert most == 4 and max(lags) < 0.1
    else:  # the third waits for the first: what a user would wait is told by the schedule alone
        assert most == 2 and lags[2] >= 0.1 and lags[3] >= 0.1
        last = outcome.records[3]
        assert last.ttft < last.first - last.scheduled - 0.1
