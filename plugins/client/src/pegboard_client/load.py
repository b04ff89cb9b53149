"""A load on a server: requests sent at their times, and what came back when."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Sequence

import attrs
import msgspec

from pegboard_client.server import ServerError, told
from pegboard_client.sse import DONE, Events, read_frame
from pegboard_client.wire import Wire

__all__ = ["Load", "Outcome", "Record"]

TICK_SECONDS = 0.02
"""How often the event loop is asked how late it is."""


@attrs.define
class Record:
    """One request, all times by the clock of `time.perf_counter`."""

    sent: float
    scheduled: float | None = None
    """When it should have been sent; None where nothing decides that, in a closed loop."""
    first: float = 0.0
    """The first piece of the answer came."""
    last: float = 0.0
    """The last one."""
    gaps: list[float] = attrs.field(factory=list)
    """Seconds between pieces."""
    input_tokens: int = 0
    output_tokens: int = 0
    counted: bool = False
    """By the server; otherwise `output_tokens` are the pieces."""
    error: str = ""

    @property
    def ttft(self) -> float:
        return self.first - self.sent

    @property
    def e2el(self) -> float:
        return self.last - self.sent

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None where there is no other."""
        if self.output_tokens < 2:
            return None
        return (self.last - self.first) / (self.output_tokens - 1)


@attrs.frozen
class Outcome:
    """What a load made."""

    records: tuple[Record, ...]
    begin: float
    """The first request's time; `end` is the last answer's, by the same clock."""
    end: float
    cpu_seconds: float
    """Processor time of this client."""
    loop_lags: tuple[float, ...]
    """How late the client's event loop was, in seconds, at regular times."""

    @property
    def duration(self) -> float:
        return max(self.end - self.begin, 1e-9)


class _Collector:
    """Fills in a record while the answer comes."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.events = Events()
        self.pieces = 0
        self._seen: tuple[float, float] | None = None
        """When the first and the last chunk with a choice came, whatever they held."""

    def take(self, data: bytes, now: float) -> None:
        """Bytes of the body, and when they came."""
        for event in self.events.feed(data):
            if event != DONE and not self._record.error:
                self._read(event, now)

    def finish(self) -> None:
        """The answer has ended. One that shows nothing, of special tokens say, was answered all the
        same: its chunks are what there is to go by."""
        record = self._record
        if not self.pieces and self._seen is not None:
            record.first, record.last = self._seen
        elif not self.pieces and not record.error:
            record.error = "the answer has no chunk, or was not streamed"
        if not record.counted:
            record.output_tokens = self.pieces

    def _read(self, event: bytes, now: float) -> None:
        record = self._record
        try:
            frame = read_frame(event)
        except msgspec.DecodeError as error:
            record.error = f"the server sent what is no chunk: {error}"
            return
        if frame.error is not None:
            record.error = told(0, event)
        if frame.choices:
            self._seen = (self._seen[0] if self._seen else now, now)
            if frame.bears_token:
                self._piece(now)
            elif self.pieces:
                record.last = now
        if frame.usage is not None:
            record.counted = True
            record.input_tokens = frame.usage.prompt_tokens
            record.output_tokens = frame.usage.completion_tokens or 0

    def _piece(self, now: float) -> None:
        record = self._record
        if self.pieces:
            record.gaps.append(now - record.last)
        else:
            record.first = now
        record.last = now
        self.pieces += 1


@attrs.define
class Load:
    """Sends prepared bodies."""

    wire: Wire
    path: str
    max_concurrency: int | None = None
    """Most requests at once; None for any number."""
    shown: bool = False
    """A line on standard error tells how far it is."""
    _ended: int = 0

    async def run(
        self, bodies: Sequence[bytes], times: Sequence[float], *, open_loop: bool
    ) -> Outcome:
        """Send each body at its time (seconds from now), or when the limit lets it.

        With `open_loop` the times are remembered as those of the schedule.
        """
        limit = asyncio.Semaphore(self.max_concurrency or len(bodies))
        lags: list[float] = []
        ticker = asyncio.ensure_future(_tick(lags))
        gc.collect()
        gc.freeze()  # what is there already is not looked at again while times are taken
        cpu, begin = time.process_time(), time.perf_counter()
        tasks = []
        try:
            for body, moment in zip(bodies, times, strict=True):
                await _until(begin + moment)
                scheduled = begin + moment if open_loop else None
                tasks.append(asyncio.ensure_future(self._one(body, scheduled, limit, len(bodies))))
            records = await asyncio.gather(*tasks)
        finally:
            ticker.cancel()
            for task in tasks:
                task.cancel()
            gc.unfreeze()
        spent = time.process_time() - cpu
        answered = [record.last for record in records if not record.error]
        end = max(answered) if answered else time.perf_counter()
        return Outcome(tuple(records), begin, end, spent, tuple(lags))

    async def _one(
        self, body: bytes, scheduled: float | None, limit: asyncio.Semaphore, total: int
    ) -> Record:
        async with limit:
            record = await self.ask(body, scheduled)
        self._ended += 1
        if self.shown:
            sys.stderr.write(f"\r{self._ended} of {total}")
            sys.stderr.flush()
        return record

    async def ask(self, body: bytes, scheduled: float | None = None) -> Record:
        """One request, now. Failures are told by the record."""
        record = Record(time.perf_counter(), scheduled)
        collector = _Collector(record)
        try:
            reply = await self.wire.post(self.path, body, collector.take)
        except ServerError as error:
            record.error = str(error)
            return record
        if reply.status >= 400:
            record.error = f"status {reply.status}: {told(reply.status, collector.events.rest)}"
        collector.finish()
        return record


async def _until(moment: float) -> None:
    """Wait; where the time is past, only let others run now and then."""
    rest = moment - time.perf_counter()
    if rest > 0:
        await asyncio.sleep(rest)


async def _tick(lags: list[float]) -> None:
    while True:
        due = time.perf_counter() + TICK_SECONDS
        await asyncio.sleep(TICK_SECONDS)
        lags.append(time.perf_counter() - due)
