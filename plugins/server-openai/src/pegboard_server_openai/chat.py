"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from pegboard import CompletionOutput, RequestOutput
from pegboard_server_openai.bodies import ChatRequest, TokenizeRequest
from pegboard_server_openai.faults import HttpError
from pegboard_server_openai.reading import read_body
from pegboard_server_openai.replies import (
    ChatChoice,
    ChatChunk,
    ChatReply,
    ChunkChoice,
    Delta,
    Message,
    Usage,
    usage_of,
)
from pegboard_server_openai.sampling import chat_params
from pegboard_server_openai.scores import ScoreWriter
from pegboard_server_openai.sse import DONE, AnswerStream, Choice, Frame, event, whole_answer
from pegboard_server_openai.state import ServerState
from pegboard_server_openai.streams import Batch, Cursor, News

__all__ = ["Chat", "chat_prompt"]

_RESERVED = (
    "add_generation_prompt",
    "chat_template",
    "chat_template_content_format",
    "continue_final_message",
    "documents",
    "messages",
    "self",
    "tools",
)
"""Names that are fields of their own, or arguments."""


class Chat:
    """The handler."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def __call__(self, request: Request) -> Response:
        """Answer one body."""
        body = read_body(await request.body(), ChatRequest)
        model = self._state.model_name(body.model)
        answer_id = self._state.answer_id("chatcmpl", request, body.request_id)
        _check_tools(body)
        self._state.check_sequences(body)
        params = chat_params(body, self._state.engine.get_default_sampling_params())
        prompt = await chat_prompt(self._state, body, documents=body.documents)
        if body.cache_salt is not None:
            prompt = {"prompt_token_ids": prompt.ids, "cache_salt": body.cache_salt}
        batch = await Batch.open(
            self._state, answer_id, [prompt], params, body.priority, body.timeout
        )
        answer = _Answer(self._state, body, answer_id, model)
        headers = {"x-request-id": answer_id.partition("-")[2]}
        if body.stream:
            return AnswerStream(batch, answer, headers, self._state.keep_alive)
        return await whole_answer(
            request.receive, batch, lambda outputs: answer.whole(outputs[0]), headers
        )


async def chat_prompt(
    state: ServerState, body: ChatRequest | TokenizeRequest, **options: Any
) -> Any:
    """The conversation of a body, rendered and tokenised."""
    state.check_template(body.chat_template)
    variables = body.chat_template_kwargs or {}
    for name in _RESERVED:
        if name in variables:
            raise HttpError(
                400,
                f"chat_template_kwargs names {name!r}, which has a place of its own",
                param="chat_template_kwargs",
            )
    if isinstance(body, ChatRequest):
        variables = {**body.hints, **variables}
    going_on = bool(body.continue_final_message)
    begins = not going_on if body.add_generation_prompt is None else body.add_generation_prompt
    return await state.engine.apply_chat_template(
        body.messages or [],
        body.chat_template,
        add_generation_prompt=begins,
        continue_final_message=going_on,
        chat_template_content_format=state.options.chat_template_content_format,
        **options,
        **variables,
    )


def _check_tools(body: ChatRequest) -> None:
    if body.tools:
        raise HttpError(
            400,
            "tools are not supported: no plugin for tool calls is installed; leave tools out",
            param="tools",
        )
    if body.tool_choice not in (None, "none", "auto"):
        raise HttpError(400, "tool_choice is allowed only together with tools", param="tool_choice")


class _Answer:
    """Makes the answer of one body from the states of its request."""

    def __init__(self, state: ServerState, body: ChatRequest, answer_id: str, model: str) -> None:
        self._engine = state.engine
        self._body = body
        self._id = answer_id
        self._model = model
        self._options = body.stream_options
        self._wants_usage = bool(self._options and self._options.include_usage)
        self._choices: dict[int, Choice] = {}
        self._created = int(time.time())

    def whole(self, output: RequestOutput) -> ChatReply:
        """The answer of a request that is complete."""
        choices = []
        for item in output.outputs:
            writer = self._writer()
            scores = None
            if writer is not None and item.logprobs is not None:
                scores = writer.chat(item.token_ids, item.logprobs)
            message = Message(item.text)
            choice = ChatChoice(item.index, message, scores, item.finish_reason, item.stop_reason)
            if self._body.return_token_ids:
                choice.token_ids = item.token_ids
            choices.append(choice)
        reply = ChatReply(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage_of([output]),
        )
        if self._body.return_token_ids:
            reply.prompt_token_ids = output.prompt_token_ids
        if self._body.prompt_logprobs is not None:
            reply.prompt_logprobs = output.prompt_logprobs
        return reply

    def pieces(self, _: int, output: RequestOutput) -> bytes:
        """Events of what is new; each choice begins with its role."""
        found = b""
        for item in output.outputs:
            choice = self._choices.get(item.index)
            if choice is None:
                choice = self._choices[item.index] = Choice(Cursor(), self._writer())
                found += event(self._first(item.index, self._usage(output), output))
            found += self._event(item.index, choice, output, item)
        return found

    def _event(
        self, index: int, choice: Choice, output: RequestOutput, item: CompletionOutput
    ) -> bytes:
        if item.finish_reason is None:
            data = choice.more(item.text, item.num_shown)
            if data is not None:
                return data
        news = choice.cursor.take(item)
        if news is None:
            return b""
        if self._plain and choice.frame is None:
            same = None if self._wants_usage else UNSET
            choice.frame = Frame(lambda text: self._chunk([ChunkChoice(index, Delta(text))], same))
        return event(self._chunk([self._piece(index, news, choice.writer)], self._usage(output)))

    def choice(self, index: int) -> Choice | None:
        """What is kept of a choice; None before its first event."""
        return self._choices.get(index)

    def last(self, outputs: Iterable[RequestOutput]) -> bytes:
        """The usage, if it was asked for, and the end."""
        return event(self._chunk([], usage_of(outputs))) + DONE if self._wants_usage else DONE

    def _usage(self, output: RequestOutput) -> Usage | UnsetType | None:
        """Of a chunk with choices."""
        if self._options is not None and self._options.continuous_usage_stats:
            return usage_of([output])
        return None if self._wants_usage else UNSET

    @property
    def _plain(self) -> bool:
        """Nothing but the text changes from chunk to chunk."""
        body = self._body
        always = self._options is not None and self._options.continuous_usage_stats
        return not body.logprobs and not body.return_token_ids and not always

    def _first(
        self, index: int, usage: Usage | UnsetType | None, output: RequestOutput
    ) -> ChatChunk:
        chunk = self._chunk([ChunkChoice(index, Delta("", "assistant"))], usage)
        if self._body.return_token_ids:
            chunk.prompt_token_ids = output.prompt_token_ids
        return chunk

    def _piece(self, index: int, news: News, writer: ScoreWriter | None) -> ChunkChoice:
        scores = None
        if writer is not None and news.scores:
            scores = writer.chat(news.ids, news.scores)
        item = news.item
        delta = Delta(news.text)
        choice = ChunkChoice(index, delta, scores, item.finish_reason, item.stop_reason)
        if self._body.return_token_ids:
            choice.token_ids = news.ids
        return choice

    def _chunk(self, choices: list[ChunkChoice], usage: Usage | UnsetType | None) -> ChatChunk:
        return ChatChunk(
            id=self._id, created=self._created, model=self._model, choices=choices, usage=usage
        )

    def _writer(self) -> ScoreWriter | None:
        if not self._body.logprobs:
            return None
        return ScoreWriter(
            self._engine.get_tokenizer(),
            self._body.top_logprobs or 0,
            as_ids=bool(self._body.return_tokens_as_token_ids),
        )
