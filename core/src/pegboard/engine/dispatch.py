"""`Dispatcher`: live requests of a front end, between its readers and the engine's client."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from pegboard.api.params import SamplingParams
from pegboard.api.scheduler import SchedulerStats
from pegboard.api.views import EngineRequest
from pegboard.engine.client import EngineClient
from pegboard.engine.inputs import TokenisedPrompt
from pegboard.engine.messages import Batch
from pegboard.engine.observe import NullWatch, Watch
from pegboard.engine.output_processor import OutputProcessor
from pegboard.engine.streams import State, Stream
from pegboard.errors import EngineDeadError, RequestError

__all__ = ["Dispatcher"]

ASKED = "asked"
"""The reason of a pause that a user wants."""
_CLOSED = "this engine is closed"


class Dispatcher:
    """Knows which stream belongs to which request. Any thread may call any method.

    Text is made on the client's thread, one batch at a time; what came of it goes to each event
    loop in one piece.
    """

    def __init__(
        self, client: EngineClient, outputs: OutputProcessor, watch: Watch | None = None
    ) -> None:
        """`watch` is the one of `outputs`."""
        self._client = client
        self._outputs = outputs
        self._watch: Watch = watch or NullWatch()
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._streams: dict[str, Stream] = {}
        self._held: dict[str, Sequence[EngineRequest]] = {}
        """Requests that came during a pause."""
        self._pauses: set[str] = set()
        """Why requests are held back."""
        self._closing = False
        self.dead: EngineDeadError | None = None
        self.stats = SchedulerStats()
        """The latest that the engine told."""
        client.start(self._take, self._bury)

    def check(self) -> None:
        """Raise `EngineDeadError` if no request can be taken any more."""
        if os.getpid() != self._owner:  # before any lock, which a thread of the parent may hold
            raise EngineDeadError(
                f"this engine belongs to process {self._owner}, of which this one is a forked "
                "child; a child makes an engine of its own"
            )
        if self._closing:
            raise EngineDeadError(_CLOSED)
        if self.dead is not None:
            raise EngineDeadError(str(self.dead))

    def is_live(self, request_id: str) -> bool:
        """The request has not ended."""
        return request_id in self._streams

    @property
    def live(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    def describe(self) -> dict[str, int]:
        """What runs, in numbers: requests, how many have no token yet, the longest prompt."""
        with self._lock:
            outputs = [self._outputs.get(name) for name in self._streams]
        found = [output for output in outputs if output is not None]
        waiting = [o for o in found if not any(item.token_ids for item in o.outputs)]
        return {
            "requests": len(found),
            "without_token": len(waiting),
            "longest_prompt": max((len(o.prompt_token_ids) for o in found), default=0),
        }

    def add(
        self,
        stream: Stream,
        prompt: TokenisedPrompt,
        params: SamplingParams,
        requests: Sequence[EngineRequest],
        trace_headers: Mapping[str, str] | None = None,
    ) -> None:
        """Let a request run. Raises `RequestError` for an id in use, and as `EngineClient.add`."""
        self.check()
        name = stream.request_id
        with self._lock:
            self.check()
            if name in self._streams:
                raise RequestError(
                    f"request_id={name!r} is in use by a live request", field="request_id"
                )
            self._let_in(name, requests)  # what comes of it waits for the lock
            self._outputs.add(name, prompt, params, requests, trace_headers)
            self._streams[name] = stream

    def cancel(self, stream: Stream) -> None:
        """Drop the request of a stream that nobody reads any more."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            if self._streams.get(stream.request_id) is not stream:
                return
            self._abort(self._forget(stream.request_id))

    def end(self, request_ids: Iterable[str], stop_reason: str | None = None) -> None:
        """Abort requests; their streams end with what there is. Unknown ids are ignored."""
        states: dict[Stream, State] = {}
        ids: list[str] = []
        with self._lock:
            for name in request_ids:
                stream, output = self._streams.get(name), self._outputs.get(name)
                if stream is not None and output is not None:
                    ids += self._forget(name, stop_reason=stop_reason)
                    states[stream] = output.moment()
            self._abort(ids)
        self._send(states)

    def expire(self, stream: Stream) -> None:
        """The deadline of a stream's request has passed."""
        if self._streams.get(stream.request_id) is stream:
            self.end([stream.request_id], "deadline")

    def pause(self, why: str = ASKED) -> None:
        """Hold back requests that come from now on; those that run go on."""
        with self._lock:
            self._pauses.add(why)

    def resume(self, why: str = ASKED) -> None:
        """Let in what was held back, in its order, unless there is another reason to hold it."""
        with self._lock:
            self._pauses.discard(why)
            while self._held and not self._pauses:
                name = next(iter(self._held))
                self._client.add(self._held.pop(name))

    @property
    def paused(self) -> bool:
        """Requests are held back because somebody asked for it."""
        return ASKED in self._pauses

    def let_in(self) -> list[str]:
        """Live requests that are not held back."""
        with self._lock:
            return [name for name in self._streams if name not in self._held]

    def drain(self, grace: float) -> None:
        """Take no further requests, wait up to `grace` seconds for those that run, and abort the
        others."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            self._closing = True
            waiting = list(self._held)
        self.end(waiting)  # they would never run
        with self._lock:
            self._changed.wait_for(lambda: not self._streams, grace)
            rest = list(self._streams)
        self.end(rest)

    # On the client's thread

    def _take(self, batch: Batch) -> None:
        with self._lock:
            changed, stopped = self._outputs.process(batch.outputs)
            states: dict[Stream, State] = {}
            for output in changed:
                states[self._streams[output.request_id]] = output.moment()
                if output.finished:
                    del self._streams[output.request_id]
            ids = self._refuse(batch, states) if batch.refused else []
            if batch.stats is not None:
                self.stats = batch.stats
                self._watch.scheduler(batch.stats)
            if not self._streams:
                self._changed.notify_all()
            if stopped:
                with contextlib.suppress(EngineDeadError):
                    self._client.finish(stopped, "stop")
            self._abort(ids)
        self._send(states)

    def _refuse(self, batch: Batch, states: dict[Stream, State]) -> list[str]:
        """End requests that the engine did not take in; ids of what it may have taken of them."""
        ids: list[str] = []
        for engine_id, problem in batch.refused.items():
            name = self._outputs.owner(engine_id)
            if name is not None:
                states[self._streams[name]] = problem.error()
                ids += self._forget(name, "error", text=problem.text)
        return ids

    def _bury(self, error: EngineDeadError) -> None:
        with self._lock:
            self.dead = error
            streams = list(self._streams.values())
            for stream in streams:
                self._forget(stream.request_id, "error", text=str(error))
            self.stats = msgspec.structs.replace(self.stats, running=0, waiting=0, used_blocks=0)
            self._watch.scheduler(self.stats)
        self._send({stream: EngineDeadError(str(error)) for stream in streams})

    # Inside

    def _let_in(self, name: str, requests: Sequence[EngineRequest]) -> None:
        if self._pauses:
            self._held[name] = requests
        else:
            self._client.add(requests)

    def _forget(
        self,
        name: str,
        reason: str = "abort",
        *,
        text: str | None = None,
        stop_reason: str | None = None,
    ) -> list[str]:
        """With the lock held; ids that the engine may still run."""
        del self._streams[name]
        ids = self._outputs.drop(name, reason, text, stop_reason)
        if not self._streams:
            self._changed.notify_all()
        return [] if self._held.pop(name, None) is not None else ids

    def _abort(self, ids: Sequence[str]) -> None:
        """With the lock held, so that the engine hears of it before of anything that follows from
        there being no such request."""
        if ids:
            with contextlib.suppress(EngineDeadError):  # which took them along
                self._client.abort(ids)

    def _send(self, states: dict[Stream, State]) -> None:
        """To the loops, which may keep `states`. What a closed loop should have read is dropped."""
        posts = {stream.post for stream in states}
        for post in posts:
            mine = states
            if len(posts) > 1:
                mine = {stream: state for stream, state in states.items() if stream.post is post}
            if not post.send(mine):
                for stream in list(mine):
                    self.cancel(stream)
