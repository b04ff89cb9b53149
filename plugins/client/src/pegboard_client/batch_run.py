"""Sending what a batch file asks for, a bounded number of requests at a time."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import attrs
import msgspec

from pegboard_client.batch_lines import BadLine, Job, Progress, error_line, reply_line
from pegboard_client.server import Server, ServerError, checked
from pegboard_client.wire import Wire

__all__ = ["BatchRun", "Meter"]

RETRIED = (429, 502, 503, 504)
"""Statuses of a server that may answer later."""
LONGEST_WAIT = 30.0


@attrs.define
class Meter:
    """Tells on standard error how far a batch is."""

    total: int
    progress: Progress
    _begin: float = attrs.field(factory=time.monotonic)
    _told: float = attrs.field(factory=time.monotonic)
    _before: int = 0

    def start(self) -> None:
        """The rate counts from now on."""
        self._begin, self._before = time.monotonic(), self.progress.count

    def tell(self) -> None:
        """Now and then; often on a terminal, where a line is written over."""
        live = sys.stderr.isatty()
        now = time.monotonic()
        if now - self._told >= (0.5 if live else 30.0):
            self._told = now
            sys.stderr.write(f"\r{self.line()}\x1b[K" if live else f"{self.line()}\n")
            sys.stderr.flush()

    def line(self) -> str:
        """For people."""
        done, spent = self.progress.count, max(time.monotonic() - self._begin, 1e-9)
        rate = (done - self._before) / spent
        left = f", {round((self.total - done) / rate)} s left" if rate and done < self.total else ""
        return f"{done} of {self.total} done, {self.progress.failed} failed, {rate:.1f}/s{left}"


class Answer(NamedTuple):
    """Of a server, good or bad."""

    status: int
    request_id: str
    body: bytes


@attrs.define
class BatchRun:
    """Answers jobs and writes a whole line for each, in the order in which they end."""

    server: Server
    wire: Wire
    out: BinaryIO
    progress: Progress
    meter: Meter
    retries: int
    """How often a request is sent again, after a pause, that the network or a server that is busy
    did not let through."""

    async def run(self, todo: Iterator[tuple[int, Job | BadLine]], at_once: int) -> None:
        """Raises `ServerError` if a request never comes through: the others would not either."""
        workers = [asyncio.ensure_future(self._work(todo)) for _ in range(at_once)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, todo: Iterator[tuple[int, Job | BadLine]]) -> None:
        for number, item in todo:
            if isinstance(item, BadLine):
                self._write(error_line(item), failed=True)
                self.progress.refused.add(number)
            else:
                answer = await self._send(item)
                line = reply_line(number, item, *answer)
                self._write(line, failed=answer.status >= 400)
                self.progress.answered.add(item.custom_id)
            self.meter.tell()

    def _write(self, line: bytes, *, failed: bool) -> None:
        self.out.write(line)
        self.out.flush()
        self.progress.failed += failed

    async def _send(self, job: Job) -> Answer:
        for attempt in range(self.retries + 1):
            try:
                return await self._once(job)
            except ServerError as error:
                if attempt == self.retries or error.status in (401, 403):
                    raise
            await asyncio.sleep(_pause(attempt))
        raise AssertionError("the last attempt returns or raises")

    async def _once(self, job: Job) -> Answer:
        """Raises `ServerError` also where the status tells that this server answers nobody now."""
        parts: list[bytes] = []
        sent = msgspec.json.encode(job.body)
        reply = await self.wire.post(job.path, sent, lambda data, _: parts.append(data))
        body = b"".join(parts)
        if reply.status in (*RETRIED, 401, 403):
            checked(self.server, reply.status, body)
        return Answer(reply.status, reply.headers.get("x-request-id", ""), body)


def _pause(attempt: int) -> float:
    """Seconds, longer each time, not the same for all that wait."""
    longest = min(LONGEST_WAIT, 0.5 * 2.0**attempt)
    return longest * random.uniform(0.5, 1.0)
