"""Requests of one body: opened together, read together, closed together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import attrs
import msgspec

from pegboard import CompletionOutput, Logprob, RequestOutput, SamplingParams
from pegboard_server_openai.engine import Stream
from pegboard_server_openai.faults import HttpError
from pegboard_server_openai.state import ServerState

__all__ = ["Batch", "Cursor", "News", "note_trace"]


TRACE_HEADERS: ContextVar[Mapping[str, str] | None] = ContextVar("trace_headers", default=None)
"""Headers of the request that is being answered which say what trace it belongs to."""
_OF_TRACES = ("traceparent", "tracestate")


def note_trace(headers: Mapping[str, str]) -> None:
    """Let requests of the engine that this task makes belong to the client's trace."""
    TRACE_HEADERS.set({name: headers[name] for name in _OF_TRACES if name in headers} or None)


class Batch:
    """The requests of one body, a prompt each."""

    def __init__(
        self, streams: Sequence[Stream], forget: Callable[[], None] = lambda: None
    ) -> None:
        """`forget` is called at the end."""
        self._streams = streams
        self._forget = forget
        self.latest: dict[int, RequestOutput] = {}
        """By the prompt's place, as it is now."""

    @classmethod
    async def open(
        cls,
        state: ServerState,
        answer_id: str,
        prompts: Sequence[Any],
        params: SamplingParams,
        priority: int | None,
        timeout: float | None = None,
    ) -> Batch:
        """Queue all of them, or none: raises what `Engine.add` raises for the first that fails.

        `timeout`: seconds that they may take, as the client wishes.
        """
        names = [state.engine_id(answer_id) for _ in prompts]
        deadline = state.deadline(timeout)
        streams: list[Stream] = []

        def forget() -> None:
            for name in names:
                state.live.pop(name, None)

        state.live.update(dict.fromkeys(names, answer_id))
        try:
            for name, prompt in zip(names, prompts, strict=True):
                streams.append(
                    await state.engine.add(
                        prompt,
                        params,
                        name,
                        priority=priority or 0,
                        deadline=deadline,
                        trace_headers=TRACE_HEADERS.get(),
                    )
                )
        except BaseException:
            cls(streams, forget).close()
            raise
        return cls(streams, forget)

    def close(self) -> None:
        """Drop those that have not ended."""
        self._forget()
        for stream in self._streams:
            stream.close()

    async def states(self) -> AsyncIterator[tuple[int, RequestOutput]]:
        """The prompt's place and its state, whenever one changes."""
        source = self._one() if len(self._streams) == 1 else self._several()
        async for place, output in source:
            self.note(place, output)
            yield place, output

    @property
    def single(self) -> Stream | None:
        """The stream, where there is one only."""
        return self._streams[0] if len(self._streams) == 1 else None

    def note(self, place: int, output: RequestOutput) -> None:
        """Keep the state of a stream that is read by itself. Raises `HttpError` for a fault."""
        self.latest[place] = output
        for item in output.outputs:
            if item.finish_reason == "error":
                raise HttpError(500, item.error or "the request failed")

    async def finished(self) -> list[RequestOutput]:
        """All of them when they are complete, in the order of their prompts."""
        async for _ in self.states():
            pass
        return [self.latest[place] for place in range(len(self._streams))]

    async def _one(self) -> AsyncIterator[tuple[int, RequestOutput]]:
        async for output in self._streams[0]:
            yield 0, output

    async def _several(self) -> AsyncIterator[tuple[int, RequestOutput]]:
        # One place: while it is taken the streams keep their latest states for themselves.
        queue: asyncio.Queue[tuple[int, RequestOutput | BaseException | None]] = asyncio.Queue(1)
        tasks = [
            asyncio.ensure_future(_feed(queue, place, stream))
            for place, stream in enumerate(self._streams)
        ]
        left = len(tasks)
        try:
            while left:
                place, news = await queue.get()
                if isinstance(news, BaseException):
                    raise news
                if news is None:
                    left -= 1
                else:
                    yield place, news
        finally:
            for task in tasks:
                task.cancel()


async def _feed(queue: asyncio.Queue[Any], place: int, stream: Stream) -> None:
    try:
        async for output in stream:
            await queue.put((place, output))
    except Exception as error:
        await queue.put((place, error))
    else:
        await queue.put((place, None))


class News(msgspec.Struct):
    """What a choice has that was not sent yet."""

    text: str
    ids: list[int]
    scores: Sequence[Mapping[int, Logprob]] | None
    item: CompletionOutput


@attrs.define
class Cursor:
    """How far one choice was sent."""

    fresh: bool = True
    """Nothing of it was sent yet."""
    _text: int = 0
    _ids: int = 0
    _ended: bool = False

    def take(self, item: CompletionOutput) -> News | None:
        """What is new; None if nothing is. Ids do not run ahead of the text that they stand for."""
        start, end = self._ids, item.num_tokens if item.finished else item.num_shown
        if self._ended or (end == start and not item.finished):
            return None
        text, ids = item.text[self._text :], item.ids_between(start, end)
        scores = None if item.logprobs is None else item.logprobs[start:end]
        self.fresh = False
        self._text, self._ids, self._ended = len(item.text), end, item.finished
        return News(text, ids, scores, item)

    def grow(self, text: str, shown: int) -> str | None:
        """The new part of the text of a sequence that goes on, of which something was sent; None
        if no more of its tokens are shown."""
        if shown == self._ids:
            return None
        new = text[self._text :]
        self._text, self._ids = len(text), shown
        return new
