"""Front end, outwards: from token ids to text, log-probabilities and finished requests."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

import attrs

from pegboard.api.params import Logprob, SamplingParams
from pegboard.api.step import PromptLogprobs, TokenLogprobs
from pegboard.api.tokenizer import Detokenizer, TextTokenizer
from pegboard.api.views import EngineOutput, EngineRequest
from pegboard.engine.inputs import TokenisedPrompt
from pegboard.engine.observe import Followed, FollowedStream, NullWatch, Watch
from pegboard.engine.outputs import CompletionOutput, RequestMetrics, RequestOutput
from pegboard.text.logprobs import LogprobDecoder
from pegboard.text.output import TextStream
from pegboard.text.stops import StopSet

__all__ = ["OutputProcessor"]


@attrs.define
class _Sequence:
    """One sequence of a request and the text that was made of it so far."""

    completion: CompletionOutput
    stream: TextStream | None
    """None without a tokeniser or with ``detokenize=False``."""
    include_stop: bool
    """The stop token's text is part of the output."""
    bare: Detokenizer | None = None
    """Takes the tokens of plain outputs by itself: nothing is held back, and nobody asked for
    log-probabilities."""
    delivered: int = 0
    """Tokens that were there at the last delivery."""
    followed: FollowedStream = attrs.field(factory=FollowedStream)

    def due(self, interval: int) -> bool:
        """Its first tokens, `interval` new ones or its end are to be delivered now."""
        tokens, ended = len(self.completion.token_ids), self.completion.finish_reason is not None
        new = tokens - self.delivered
        if not (ended or (new and not self.delivered) or new >= interval):
            return False
        self.delivered = tokens
        return True


@attrs.define
class _Request:
    output: RequestOutput
    params: SamplingParams
    sequences: dict[str, _Sequence]
    """By the id of the engine's request."""
    unfinished: int
    """How many of the sequences have not ended."""
    followed: Followed


class OutputProcessor:
    """Keeps the visible state of every live request."""

    def __init__(
        self,
        tokenizer: TextTokenizer | None,
        stream_interval: int = 1,
        watch: Watch | None = None,
    ) -> None:
        """A sequence is delivered with its first token, then every `stream_interval` tokens, and
        with its end. Nothing is lost in between: each delivery is the whole state. `watch` is told
        of all of it."""
        self._watch: Watch = watch or NullWatch()
        self._tokenizer = tokenizer
        self._interval = stream_interval
        self._decoder = LogprobDecoder(tokenizer) if tokenizer else None
        self._requests: dict[str, _Request] = {}
        self._owner: dict[str, tuple[_Request, _Sequence]] = {}
        """By the id of the engine's request."""

    def add(
        self,
        request_id: str,
        prompt: TokenisedPrompt,
        params: SamplingParams,
        requests: Sequence[EngineRequest],
        trace_headers: Mapping[str, str] | None = None,
    ) -> None:
        """Begin to follow a request and its sequences, which the engine has taken."""
        stops = StopSet(params.stop_strings)
        sequences = {item.request_id: self._sequence(item, stops) for item in requests}
        output = RequestOutput(
            request_id=request_id,
            prompt=prompt.text,
            prompt_token_ids=list(prompt.ids),
            prompt_logprobs=None if params.prompt_logprobs is None else [None],
            outputs=[sequence.completion for sequence in sequences.values()],
            finished=False,
            metrics=RequestMetrics(arrival_time=requests[0].arrival),
        )
        followed = Followed(output, params, requests[0].max_tokens, dict(trace_headers or {}))
        request = _Request(output, params, sequences, len(sequences), followed)
        self._requests[request_id] = request
        self._owner.update((name, (request, found)) for name, found in sequences.items())
        self._watch.begin(followed)

    def process(self, outputs: Iterable[EngineOutput]) -> tuple[list[RequestOutput], list[str]]:
        """Take a step's outputs.

        Returns the requests whose delivery is due, and the ids of engine requests that a stop
        string ended, which the engine does not know yet.
        """
        changed: dict[str, RequestOutput] = {}
        stopped: list[str] = []
        interval, watch = self._interval, self._watch
        for item in outputs:
            found = self._owner.get(item.request_id)
            if found is None:
                continue  # ended here already, by a stop string or an abort
            request, sequence = found
            if sequence.completion.finish_reason is not None:
                continue
            completion, bare = sequence.completion, sequence.bare
            if bare is not None and _is_plain(item, request.output):
                _take_plain(request.output, completion, bare, item)
            elif self._take(request, sequence, item):
                stopped.append(item.request_id)
            if item.token_ids:
                moment = item.time or time.monotonic()
                watch.took(request.followed, sequence.followed, len(completion.token_ids), moment)
            if completion.finish_reason is not None:
                request.unfinished -= 1
                if not request.unfinished:
                    self._close(request)
            if interval == 1 or sequence.due(interval):
                changed[request.output.request_id] = request.output
        watch.flush()
        return list(changed.values()), stopped

    def drop(
        self,
        request_id: str,
        reason: str,
        error: str | None = None,
        stop_reason: str | None = None,
    ) -> list[str]:
        """End a request from here; returns the ids of its engine requests that may still be
        alive."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return []
        for sequence in request.sequences.values():
            if not sequence.completion.finished:
                sequence.completion.finish_reason = reason
                sequence.completion.stop_reason = stop_reason
                sequence.completion.error = error
        request.output.finished = True
        self._watch.end(request.followed)
        self._watch.flush()
        return [item for item in request.sequences if self._owner.pop(item, None)]

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def owner(self, engine_id: str) -> str | None:
        """Whose sequence this engine request is; None if it ended or is unknown."""
        found = self._owner.get(engine_id)
        return None if found is None else found[0].output.request_id

    def get(self, request_id: str) -> RequestOutput | None:
        """The state of a live request; None if it ended or is unknown."""
        request = self._requests.get(request_id)
        return None if request is None else request.output

    def live(self) -> list[str]:
        """Ids of the requests that have not ended."""
        return list(self._requests)

    def _sequence(self, item: EngineRequest, stops: StopSet) -> _Sequence:
        params = item.params
        completion = CompletionOutput(index=item.child)
        if params.logprobs is not None:
            completion.logprobs = []
            completion.cumulative_logprob = 0.0
        stream = None
        if self._tokenizer is not None and params.detokenize:
            stream = TextStream(self._tokenizer, params, prompt_ids=item.prompt_ids, stops=stops)
        bare = None if stream is None or params.logprobs is not None else stream.bare
        return _Sequence(completion, stream, params.include_stop_str_in_output, bare)

    def _take(self, request: _Request, sequence: _Sequence, item: EngineOutput) -> bool:
        """Add one output to its sequence; True if a stop string ended it."""
        if item.prompt_logprobs is not None:
            self._take_prompt(request, item.prompt_logprobs)
        completion, output = sequence.completion, request.output
        for event in item.events:
            output.metrics.note(event)
        if item.token_ids:
            output.metrics.note_tokens(item.time or time.monotonic())
        output.num_cached_tokens = max(output.num_cached_tokens, item.cached_tokens)
        if item.kv_transfer is not None:
            output.kv_transfer_params = item.kv_transfer
        stop, used = self._take_text(sequence, item)
        self._take_tokens(completion, item, used)
        if stop is not None or item.finish_reason is not None:
            completion.num_shown = len(completion.token_ids)
        if stop is not None and item.finish_reason != "stop":
            completion.finish_reason, completion.stop_reason = "stop", stop
            return item.finish_reason is None
        if item.finish_reason is not None:
            completion.finish_reason = item.finish_reason
            completion.stop_reason = item.stop_reason
            completion.error = item.error
        return False

    @staticmethod
    def _take_text(sequence: _Sequence, item: EngineOutput) -> tuple[str | None, int]:
        """Text of the new tokens; the stop string that was met, and how many tokens count."""
        stream = sequence.stream
        if stream is None:
            sequence.completion.num_shown += len(item.token_ids)
            return None, len(item.token_ids)
        # The id that ended the output is part of its ids but, unless asked for, not of its text.
        hidden = item.finish_reason == "stop" and not sequence.include_stop
        shown = item.token_ids[:-1] if hidden else item.token_ids
        delta = stream.push(shown)
        sequence.completion.text += delta.text
        sequence.completion.num_shown += delta.token_count
        if delta.stopped is not None:
            return delta.stopped, delta.consumed
        if item.finish_reason is not None:
            rest = stream.finish()
            sequence.completion.text += rest.text
            if rest.stopped is not None:
                return rest.stopped, len(item.token_ids)
        return None, len(item.token_ids)

    def _take_tokens(self, completion: CompletionOutput, item: EngineOutput, used: int) -> None:
        tokens = item.token_ids
        completion.token_ids += tokens if used == len(tokens) else tokens[:used]
        if completion.logprobs is None or not item.logprobs:
            return
        for entry in item.logprobs[:used]:
            completion.logprobs.append(self._entry(entry))
            assert completion.cumulative_logprob is not None
            completion.cumulative_logprob += entry.logprobs[0]

    def _take_prompt(self, request: _Request, chunk: PromptLogprobs) -> None:
        entries = request.output.prompt_logprobs
        assert entries is not None and chunk.first <= len(entries), "prompt logprobs have a gap"
        # A chunk that a preemption made the engine compute again is reported again.
        fresh = chunk.entries[len(entries) - chunk.first :]
        entries.extend(self._entry(entry) for entry in fresh)

    def _entry(self, entry: TokenLogprobs) -> dict[int, Logprob]:
        if self._decoder is not None:
            return self._decoder.entry(entry)
        ranks = [entry.rank, *range(1, len(entry.ids))]
        items = list(zip(entry.ids, entry.logprobs, ranks, strict=True))
        return {token: Logprob(value, rank) for token, value, rank in reversed(items)}

    def _close(self, request: _Request) -> None:
        request.output.finished = True
        request.output.metrics.finished_time = time.time()
        self._watch.end(request.followed)
        del self._requests[request.output.request_id]
        for item in request.sequences:
            self._owner.pop(item, None)


def _is_plain(item: EngineOutput, known: RequestOutput) -> bool:
    """It brings tokens and nothing else that is not known."""
    return (
        item.finish_reason is None
        and bool(item.token_ids)
        and not item.events
        and item.cached_tokens <= known.num_cached_tokens
        and item.prompt_logprobs is None
        and item.kv_transfer is None
    )


def _take_plain(
    output: RequestOutput, completion: CompletionOutput, bare: Detokenizer, item: EngineOutput
) -> None:
    """As `OutputProcessor._take`, for most outputs there are: tokens amid an answer."""
    tokens, metrics = item.token_ids, output.metrics
    moment = item.time or time.monotonic()
    if metrics.first_token_ts is None:
        metrics.note_tokens(moment)
    metrics.last_token_ts = moment
    completion.text += bare.push(tokens)
    completion.num_shown += len(tokens)
    completion.token_ids += tokens
