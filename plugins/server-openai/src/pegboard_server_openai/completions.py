"""``POST /v1/completions``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from pegboard import CompletionOutput, RequestOutput
from pegboard_server_openai.bodies import CompletionRequest
from pegboard_server_openai.faults import HttpError
from pegboard_server_openai.reading import read_body
from pegboard_server_openai.replies import CompletionChoice, CompletionReply, Usage, usage_of
from pegboard_server_openai.sampling import completion_params
from pegboard_server_openai.scores import CompletionScores, ScoreWriter
from pegboard_server_openai.sse import DONE, AnswerStream, Choice, Frame, event, whole_answer
from pegboard_server_openai.state import ServerState
from pegboard_server_openai.streams import Batch, Cursor, News

__all__ = ["Completions"]


class Completions:
    """The handler."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def __call__(self, request: Request) -> Response:
        """Answer one body."""
        body = read_body(await request.body(), CompletionRequest)
        model = self._state.model_name(body.model)
        answer_id = self._state.answer_id("cmpl", request, body.request_id)
        prompts = _salted(_prompts(body.prompt), body.cache_salt)
        self._state.check_sequences(body)
        params = completion_params(body, self._state.engine.get_default_sampling_params())
        batch = await Batch.open(
            self._state, answer_id, prompts, params, body.priority, body.timeout
        )
        answer = _Answer(self._state, body, answer_id, model, params.n)
        headers = {"x-request-id": answer_id.partition("-")[2]}
        if body.stream:
            return AnswerStream(batch, answer, headers, self._state.keep_alive)
        return await whole_answer(request.receive, batch, answer.whole, headers)


def _prompts(given: Any) -> list[Any]:
    """A prompt or several, as a list."""
    if given is None:
        raise HttpError(
            400, "prompt is missing: text, token ids or a list of these", param="prompt"
        )
    if isinstance(given, str):
        return [given]
    if not given:
        raise HttpError(400, "prompt=[] is not allowed: at least one prompt", param="prompt")
    if all(isinstance(item, (str, list)) for item in given):
        return list(given)
    return [given]


def _salted(prompts: list[Any], salt: str | None) -> list[Any]:
    if salt is None:
        return prompts
    key = {True: "prompt", False: "prompt_token_ids"}
    return [{key[isinstance(item, str)]: item, "cache_salt": salt} for item in prompts]


class _Answer:
    """Makes the answer of one body from the states of its requests."""

    def __init__(
        self, state: ServerState, body: CompletionRequest, answer_id: str, model: str, n: int
    ) -> None:
        self._engine = state.engine
        self._body = body
        self._id = answer_id
        self._model = model
        self._n = n
        self._options = body.stream_options
        self._wants_usage = bool(self._options and self._options.include_usage)
        self._choices: dict[int, Choice] = {}
        self._created = int(time.time())

    def whole(self, outputs: Sequence[RequestOutput]) -> CompletionReply:
        """The answer of requests that are complete."""
        choices = [
            self._whole_choice(place * self._n + item.index, output, item)
            for place, output in enumerate(outputs)
            for item in output.outputs
        ]
        return self._reply(choices, usage_of(outputs))

    def pieces(self, place: int, output: RequestOutput) -> bytes:
        """Events of what is new in one prompt's request."""
        found = b""
        for item in output.outputs:
            index = place * self._n + item.index
            if index not in self._choices:
                self._choices[index] = Choice(Cursor(), self._writer())
            found += self._event(index, self._choices[index], output, item)
        return found

    def _event(
        self, index: int, choice: Choice, output: RequestOutput, item: CompletionOutput
    ) -> bytes:
        if item.finish_reason is None:
            data = choice.more(item.text, item.num_shown)
            if data is not None:
                return data
        first = choice.cursor.fresh
        news = choice.cursor.take(item)
        if news is None:
            return b""
        if self._plain and first:
            same = None if self._wants_usage else UNSET
            choice.frame = Frame(lambda text: self._reply([CompletionChoice(index, text)], same))
        piece = self._piece(index, news, choice.writer, output if first else None)
        always = self._options is not None and self._options.continuous_usage_stats
        usage = usage_of([output]) if always else None if self._wants_usage else UNSET
        return event(self._reply([piece], usage))

    def choice(self, index: int) -> Choice | None:
        """What is kept of a choice; None before its first event."""
        return self._choices.get(index)

    def last(self, outputs: Iterable[RequestOutput]) -> bytes:
        """The usage, if it was asked for, and the end."""
        return event(self._reply([], usage_of(outputs))) + DONE if self._wants_usage else DONE

    @property
    def _plain(self) -> bool:
        """Nothing but the text changes from chunk to chunk."""
        body = self._body
        always = self._options is not None and self._options.continuous_usage_stats
        return body.logprobs is None and not body.return_token_ids and not always

    def _reply(
        self, choices: list[CompletionChoice], usage: Usage | UnsetType | None
    ) -> CompletionReply:
        return CompletionReply(
            id=self._id, created=self._created, model=self._model, choices=choices, usage=usage
        )

    def _whole_choice(
        self, index: int, output: RequestOutput, item: CompletionOutput
    ) -> CompletionChoice:
        news = News(item.text, item.token_ids, item.logprobs, item)
        choice = self._piece(index, news, self._writer(), output)
        if self._body.prompt_logprobs is not None:
            choice.prompt_logprobs = output.prompt_logprobs
        return choice

    def _piece(
        self, index: int, news: News, writer: ScoreWriter | None, first: RequestOutput | None
    ) -> CompletionChoice:
        """A choice with what is new; `first`: nothing of it was sent before."""
        text, scores = news.text, None
        prompt_scores = None
        if first is not None and self._body.echo:
            text = self._prompt_text(first) + text
            if writer is not None and first.prompt_logprobs is not None:
                prompt_scores = writer.completion(
                    first.prompt_token_ids, first.prompt_logprobs, shown=True
                )
        if writer is not None and news.scores is not None:
            scores = _joined(prompt_scores, writer.completion(news.ids, news.scores))
        choice = CompletionChoice(
            index, text, scores, news.item.finish_reason, news.item.stop_reason
        )
        if self._body.return_token_ids:
            choice.token_ids = news.ids
            choice.prompt_token_ids = first.prompt_token_ids if first is not None else UNSET
        return choice

    def _prompt_text(self, output: RequestOutput) -> str:
        if output.prompt is not None:
            return output.prompt
        tokenizer = self._engine.get_tokenizer()
        return tokenizer.decode(output.prompt_token_ids, skip_special_tokens=False)

    def _writer(self) -> ScoreWriter | None:
        if self._body.logprobs is None:
            return None
        return ScoreWriter(
            self._engine.get_tokenizer(),
            self._body.logprobs,
            as_ids=bool(self._body.return_tokens_as_token_ids),
            hidden=self._body.skip_special_tokens is not False,
        )


def _joined(first: CompletionScores | None, second: CompletionScores) -> CompletionScores:
    if first is None:
        return second
    return CompletionScores(
        first.tokens + second.tokens,
        first.token_logprobs + second.token_logprobs,
        first.top_logprobs + second.top_logprobs,
        first.text_offset + second.text_offset,
    )
