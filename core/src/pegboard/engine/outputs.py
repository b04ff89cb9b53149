"""What users get back: `RequestOutput` and `CompletionOutput`."""

from __future__ import annotations

import time
from typing import Any

import attrs
import msgspec

from pegboard.api.params import Logprob
from pegboard.api.views import RequestEvent

__all__ = ["CompletionOutput", "Moment", "RequestMetrics", "RequestOutput"]


@attrs.define
class CompletionOutput:
    """One generated sequence."""

    index: int
    text: str = ""
    token_ids: list[int] = attrs.field(factory=list)
    cumulative_logprob: float | None = None
    """Sum of the log-probabilities of `token_ids`; None unless logprobs were asked for."""
    logprobs: list[dict[int, Logprob]] | None = None
    """Per output token, by token id, the sampled token and the likeliest alternatives."""
    finish_reason: str | None = None
    """``"stop"`` (an end id or a stop string), ``"length"``, ``"abort"``, ``"error"``; None while
    it runs."""
    stop_reason: int | str | None = None
    """The stop token id or stop string that ended it; None for the model's own end id."""
    error: str | None = None
    """Why it could not be finished, with `finish_reason` ``"error"``."""
    num_shown: int = 0
    """How many of `token_ids` `text` shows: while characters are held back that may begin a stop
    string, so are their tokens. All of them when it is finished."""

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def num_tokens(self) -> int:
        """Length of `token_ids`; costs nothing where they are long."""
        return len(self.token_ids)

    def ids_between(self, start: int, stop: int) -> list[int]:
        """``token_ids[start:stop]``, at the cost of these alone."""
        return self.token_ids[start:stop]

    def snapshot(self) -> CompletionOutput:
        """A copy that stays as it is while the sequence grows."""
        return _Snapshot(self)


class _Snapshot(CompletionOutput):
    """Shares the growing lists, of which only the first entries count, until they are asked for:
    most readers look at the text and at what is new."""

    __slots__ = ("_count", "_own_ids", "_own_logprobs", "_shared_ids", "_shared_logprobs")

    def __init__(self, source: CompletionOutput) -> None:
        """Of the sequence as it is now; its lists are only ever appended to."""
        self.index = source.index
        self.text = source.text
        self.cumulative_logprob = source.cumulative_logprob
        self.finish_reason = source.finish_reason
        self.stop_reason = source.stop_reason
        self.error = source.error
        self.num_shown = source.num_shown
        self._shared_ids = source.token_ids
        self._count = len(self._shared_ids)
        self._shared_logprobs = source.logprobs
        self._own_ids: list[int] | None = None
        self._own_logprobs: list[dict[int, Logprob]] | None = None

    def rewind(self, text: str, shown: int, count: int, score: float | None) -> None:
        """To when the sequence went on and had so much."""
        self.text, self.num_shown, self._count, self.cumulative_logprob = text, shown, count, score
        self.finish_reason = self.stop_reason = self.error = None

    @property
    def num_tokens(self) -> int:
        return self._count

    def ids_between(self, start: int, stop: int) -> list[int]:
        return self._shared_ids[start : min(stop, self._count)]

    @property
    def token_ids(self) -> list[int]:
        if self._own_ids is None:
            self._own_ids = self._shared_ids[: self._count]
        return self._own_ids

    @token_ids.setter
    def token_ids(self, value: list[int]) -> None:
        self._own_ids = value

    @property
    def logprobs(self) -> list[dict[int, Logprob]] | None:
        if self._own_logprobs is None and self._shared_logprobs is not None:
            self._own_logprobs = self._shared_logprobs[: self._count]
        return self._own_logprobs

    @logprobs.setter
    def logprobs(self, value: list[dict[int, Logprob]] | None) -> None:
        self._own_logprobs = value

    def __reduce__(self) -> Any:
        """Copies and pickles are plain outputs."""
        names = [field.name for field in attrs.fields(CompletionOutput)]
        return CompletionOutput, tuple(getattr(self, name) for name in names)


@attrs.define
class RequestMetrics:
    """When things happened to a request.

    ``…_time`` are seconds since the epoch. ``…_ts`` are seconds of the engine's monotonic clock,
    good for differences only. With `n` above 1: the first or last time for any of the sequences.
    """

    arrival_time: float
    first_token_time: float | None = None
    finished_time: float | None = None
    queued_ts: float | None = None
    """The scheduler took it in."""
    scheduled_ts: float | None = None
    """It began to run."""
    first_token_ts: float | None = None
    last_token_ts: float | None = None
    preemptions: int = 0
    """How often its sequences lost their blocks and were computed again."""

    @property
    def queue_seconds(self) -> float | None:
        """From taken in to running."""
        return _difference(self.queued_ts, self.scheduled_ts)

    @property
    def prefill_seconds(self) -> float | None:
        """From running to the first token, preemptions included."""
        return _difference(self.scheduled_ts, self.first_token_ts)

    @property
    def decode_seconds(self) -> float | None:
        """From the first token to the last, preemptions included."""
        return _difference(self.first_token_ts, self.last_token_ts)

    def note(self, event: RequestEvent) -> None:
        """Take over what the scheduler tells."""
        if event.kind == "QUEUED" and self.queued_ts is None:
            self.queued_ts = event.time
        elif event.kind == "SCHEDULED" and self.scheduled_ts is None:
            self.scheduled_ts = event.time
        elif event.kind == "PREEMPTED":
            self.preemptions += 1

    def note_tokens(self, moment: float) -> None:
        """Tokens arrived, at `moment` of the monotonic clock."""
        if self.first_token_ts is None:
            self.first_token_time = time.time()
            self.first_token_ts = moment
        self.last_token_ts = moment


def _difference(start: float | None, stop: float | None) -> float | None:
    return None if start is None or stop is None else stop - start


@attrs.define
class RequestOutput:
    """State of one request: complete when `finished`."""

    request_id: str
    prompt: str | None
    """The prompt's text; None if it was given as token ids."""
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    """One entry per prompt token; the first is None, since nothing predicts it."""
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    num_cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache or, through a KV connector, from outside."""
    kv_transfer_params: dict[str, Any] | None = None
    """What a KV connector says of the blocks that it keeps, for the engine that will load them."""

    def snapshot(self) -> RequestOutput:
        """A copy that stays as it is while the request goes on, but for its `metrics`; they and the
        prompt are shared."""
        scores = self.prompt_logprobs
        return RequestOutput(
            self.request_id,
            self.prompt,
            self.prompt_token_ids,
            None if scores is None else scores.copy(),
            [output.snapshot() for output in self.outputs],
            self.finished,
            self.metrics,
            self.num_cached_tokens,
            self.kv_transfer_params,
        )

    def moment(self) -> Moment:
        """The state as it is now, for one who may never look at all of it."""
        item = self.outputs[0]
        whole = len(self.outputs) > 1 or self.prompt_logprobs is not None
        if whole or item.finish_reason is not None:
            return Moment(self.snapshot(), finished=self.finished)
        return Moment(
            self,
            item.text,
            item.num_shown,
            len(item.token_ids),
            item.cumulative_logprob,
            self.num_cached_tokens,
        )


class Moment(msgspec.Struct, gc=False):
    """A request's state at one time. Of a single sequence that goes on it remembers what changes
    from token to token, which costs a small part of a copy."""

    source: RequestOutput
    """The copy; where there is a `text`, the request itself."""
    text: str | None = None
    """Of the single sequence that goes on."""
    shown: int = 0
    """How many of its tokens `text` shows."""
    count: int = 0
    """How many tokens it has."""
    score: float | None = None
    """The sum of their log-probabilities."""
    cached: int = 0
    finished: bool = False

    def output(self) -> RequestOutput:
        """The copy, which is made now of what was remembered."""
        source, text = self.source, self.text
        if text is None:
            return source
        item = _Snapshot(source.outputs[0])
        item.rewind(text, self.shown, self.count, self.score)
        return RequestOutput(
            source.request_id,
            source.prompt,
            source.prompt_token_ids,
            None,
            [item],
            False,
            source.metrics,
            self.cached,
        )
