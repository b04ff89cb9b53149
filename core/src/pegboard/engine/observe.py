"""From the front end to those who want to know what becomes of requests: the front halves of stat
loggers, and the tracer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import attrs
import msgspec

from pegboard.api.params import SamplingParams
from pegboard.api.scheduler import SchedulerStats
from pegboard.api.stat_logger_front import FrontRecorder, RequestAdded, RequestFacts, TokenBatch
from pegboard.api.tracer import RequestTracer
from pegboard.engine.outputs import RequestOutput
from pegboard.logging import get_logger

__all__ = ["Followed", "FollowedStream", "NullWatch", "ObserverWatch", "Watch"]

_STATS_EVERY = 0.1
"""Seconds between two looks at the scheduler of an engine in this process."""


class FollowedStream(msgspec.Struct):
    """What is remembered of a sequence."""

    tokens: int = 0
    last: float = 0.0
    """When the latest of them were made, on the engine's monotonic clock."""


@attrs.define(eq=False)
class Followed:
    """What is remembered of a request."""

    output: RequestOutput
    params: SamplingParams
    max_tokens: int
    trace_headers: Mapping[str, str] = attrs.field(factory=dict)
    arrived: float = attrs.field(init=False)
    """On the monotonic clock."""
    begun: bool = False
    """It has a token."""

    def __attrs_post_init__(self) -> None:
        self.arrived = time.monotonic() - max(0.0, time.time() - self.output.metrics.arrival_time)


class Watch(Protocol):
    """What the front end tells of its requests. One call at a time, from any thread."""

    @property
    def recorders(self) -> Mapping[str, FrontRecorder]:
        """By name, those that are told."""
        ...

    def begin(self, request: Followed) -> None:
        """A request was taken in."""
        ...

    def took(self, request: Followed, stream: FollowedStream, tokens: int, moment: float) -> None:
        """A sequence has so many tokens now, the latest made at `moment`."""
        ...

    def end(self, request: Followed) -> None:
        """A request has ended."""
        ...

    def flush(self) -> None:
        """All that one message brought was told."""
        ...

    def scheduler(self, stats: SchedulerStats) -> None:
        """The engine told how its scheduler stands."""
        ...

    def look(self, stats: Callable[[], SchedulerStats], *, now: bool) -> None:
        """An engine of this process made a step: ask for its figures if it is time, or if they are
        wanted `now`."""
        ...

    def close(self) -> None:
        """End all of them; a second call does nothing."""
        ...


class NullWatch:
    """Nobody wants to know."""

    @property
    def recorders(self) -> Mapping[str, FrontRecorder]:
        return {}

    def begin(self, request: Followed) -> None:
        return

    def took(self, request: Followed, stream: FollowedStream, tokens: int, moment: float) -> None:
        return

    def end(self, request: Followed) -> None:
        return

    def flush(self) -> None:
        return

    def scheduler(self, stats: SchedulerStats) -> None:
        return

    def look(self, stats: Callable[[], SchedulerStats], *, now: bool) -> None:
        return

    def close(self) -> None:
        return


class ObserverWatch:
    """Tells recorders and tracers. Their faults are logged, the first of each; the others go on."""

    def __init__(
        self, recorders: Mapping[str, FrontRecorder], tracers: Mapping[str, RequestTracer]
    ) -> None:
        self.recorders = dict(recorders)
        self._tracers = dict(tracers)
        self._faulty: set[str] = set()
        self._log = get_logger("pegboard.engine")
        self._looked = 0.0
        self._owner: int | None = os.getpid()
        self._ended: list[RequestFacts] = []
        self._clear()

    def _clear(self) -> None:
        self._streams = self._tokens = self._prompt = self._cached = 0
        self._first: list[float] = []
        self._intervals: list[float] = []

    def begin(self, request: Followed) -> None:
        output = request.output
        event = RequestAdded(
            output.request_id,
            output.metrics.arrival_time,
            len(output.prompt_token_ids),
            len(output.outputs),
        )
        self._tell("added", event)

    def took(self, request: Followed, stream: FollowedStream, tokens: int, moment: float) -> None:
        fresh = tokens - stream.tokens
        if not fresh:
            return
        stream.tokens = tokens
        self._tokens += fresh
        self._streams += 1
        if stream.last:
            self._intervals.append(moment - stream.last)
        elif not request.begun:
            request.begun = True
            self._first.append(max(0.0, moment - request.arrived))
            self._prompt += len(request.output.prompt_token_ids)
            self._cached += request.output.num_cached_tokens
        stream.last = moment

    def end(self, request: Followed) -> None:
        self._ended.append(_facts(request))

    def flush(self) -> None:
        if self._streams:
            batch = TokenBatch(
                self._streams,
                self._tokens,
                self._first,
                self._intervals,
                self._prompt,
                self._cached,
            )
            self._clear()
            self._tell("tokens", batch)
        if self._ended:
            ended, self._ended = self._ended, []
            for facts in ended:
                self._tell("finished", facts)
                self._tell_each(self._tracers, "tracer", "finished", facts)

    def scheduler(self, stats: SchedulerStats) -> None:
        self._tell("scheduler", stats)

    def look(self, stats: Callable[[], SchedulerStats], *, now: bool) -> None:
        moment = time.monotonic()
        if now or moment - self._looked >= _STATS_EVERY:
            self._looked = moment
            self.scheduler(stats())

    def close(self) -> None:
        if os.getpid() != self._owner:  # a forked child, whose parent still has them
            return
        self._owner = None
        self._tell("close")
        self._tell_each(self._tracers, "tracer", "close")

    def _tell(self, what: str, *told: Any) -> None:
        self._tell_each(self.recorders, "stat logger", what, *told)

    def _tell_each(self, listeners: Mapping[str, Any], kind: str, what: str, *told: Any) -> None:
        for name, listener in listeners.items():
            try:
                getattr(listener, what)(*told)
            except Exception as error:
                self._complain(f"{kind} {name}", what, error)

    def _complain(self, who: str, what: str, error: Exception) -> None:
        if who not in self._faulty:
            self._faulty.add(who)
            self._log.error(
                f"a {who.rpartition(' ')[0]} failed", name=who, call=what, error=repr(error)
            )


def _facts(request: Followed) -> RequestFacts:
    """A request at its end."""
    output, metrics = request.output, request.output.metrics
    first = metrics.first_token_ts
    return RequestFacts(
        request_id=output.request_id,
        arrival=metrics.arrival_time,
        prompt_tokens=len(output.prompt_token_ids),
        cached_tokens=output.num_cached_tokens,
        generated=tuple(len(each.token_ids) for each in output.outputs),
        reasons=tuple(each.finish_reason or "abort" for each in output.outputs),
        max_tokens=request.max_tokens,
        params=request.params,
        seconds=time.monotonic() - request.arrived,
        first_token=None if first is None else max(0.0, first - request.arrived),
        queue=metrics.queue_seconds,
        prefill=metrics.prefill_seconds,
        decode=metrics.decode_seconds,
        preemptions=metrics.preemptions,
        trace_headers=request.trace_headers,
    )
