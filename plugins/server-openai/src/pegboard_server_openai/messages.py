"""``POST /v1/messages``."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import attrs
from starlette.requests import Request
from starlette.responses import Response

from pegboard import CompletionOutput, RequestOutput
from pegboard_server_openai.asking import as_chat, ask, renamed
from pegboard_server_openai.bodies import ChatRequest
from pegboard_server_openai.chat import chat_prompt
from pegboard_server_openai.faults import HttpError, json_response
from pegboard_server_openai.messages_bodies import (
    CountTokensRequest,
    MessagesRequest,
    check_messages,
    effort_of,
)
from pegboard_server_openai.messages_errors import error_event
from pegboard_server_openai.messages_input import chat_messages, goes_on
from pegboard_server_openai.messages_replies import (
    BlockDelta,
    BlockStart,
    BlockStop,
    Message,
    MessageDelta,
    MessageStart,
    MessageStop,
    Ping,
    Stop,
    TextBlock,
    TextDelta,
    message_usage,
)
from pegboard_server_openai.named_events import named_event, stream_fault
from pegboard_server_openai.reading import read_body
from pegboard_server_openai.sse import EventStream, whole_answer
from pegboard_server_openai.state import ServerState
from pegboard_server_openai.streams import Batch, Cursor

__all__ = ["Messages"]

_NAMES = {"prompt": "messages", "max_completion_tokens": "max_tokens", "stop": "stop_sequences"}
"""Fields of a chat, and where they come from."""


class Messages:
    """The handlers."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def create(self, request: Request) -> Response:
        """Answer one body."""
        body = read_body(await request.body(), MessagesRequest)
        model = self._state.model_name(body.model)
        name = self._state.answer_id("msg", request, body.request_id)
        check_messages(body)
        own = {"max_completion_tokens": body.max_tokens, "stop": body.stop_sequences}
        with renamed(_NAMES):
            batch, _ = await ask(self._state, _chat(body, **own), name, shorten=True)
        answer = _Answer(model, body.max_tokens)
        request_id = name.partition("-")[2]
        headers = {"request-id": request_id, "x-request-id": request_id}
        if body.stream:
            return EventStream(answer.events(batch), batch.close, headers)
        return await whole_answer(
            request.receive, batch, lambda outputs: answer.whole(outputs[0]), headers
        )

    async def count(self, request: Request) -> Response:
        """How many tokens the prompt of a body has."""
        body = read_body(await request.body(), CountTokensRequest)
        self._state.model_name(body.model)
        check_messages(body)
        with renamed(_NAMES):
            prompt = await chat_prompt(self._state, _chat(body))
        return json_response({"input_tokens": len(prompt.ids)})


def _chat(body: CountTokensRequest, **own: Any) -> ChatRequest:
    messages = chat_messages(body)
    effort = effort_of(body)
    return as_chat(body, messages, effort=effort, continue_final_message=goes_on(messages), **own)


@attrs.define
class _Answer:
    """Makes the answer of one body from the states of its request."""

    _model: str
    _max_tokens: int
    """What the client allows; the context may have had room for less."""
    _id: str = attrs.field(factory=lambda: f"msg_{uuid.uuid4().hex}", init=False)

    def whole(self, output: RequestOutput) -> Message:
        """The answer of a request that is complete."""
        stop = self._stop(output.outputs[0])
        message = self._message(output)
        message.stop_reason, message.stop_sequence = stop.stop_reason, stop.stop_sequence
        text = output.outputs[0].text
        message.content = [TextBlock(text)] if text else []
        return message

    async def events(self, batch: Batch) -> AsyncIterator[bytes]:
        """The answer piece by piece."""
        try:
            async for data in self._pieces(batch):
                yield data
        except Exception as error:
            yield named_event(error_event(stream_fault(error)))

    async def _pieces(self, batch: Batch) -> AsyncIterator[bytes]:
        cursor, text = Cursor(), ""
        async for _, output in batch.states():
            fresh = cursor.fresh
            news = cursor.take(output.outputs[0])
            if news is None:
                continue
            if fresh:
                yield named_event(MessageStart(self._message(output)))
                yield named_event(Ping())
            if news.text:
                if not text:
                    yield named_event(BlockStart(TextBlock("")))
                text += news.text
                yield named_event(BlockDelta(TextDelta(news.text)))
        output = batch.latest[0]
        if text:
            yield named_event(BlockStop())
        stop = self._stop(output.outputs[0])
        yield named_event(MessageDelta(stop, message_usage(output)))
        yield named_event(MessageStop())

    def _message(self, output: RequestOutput) -> Message:
        return Message(id=self._id, model=self._model, content=[], usage=message_usage(output))

    def _stop(self, item: CompletionOutput) -> Stop:
        """Raises `HttpError` for an answer that the server ended: no reason stands for that."""
        if item.finish_reason == "abort":
            late = item.stop_reason == "deadline"
            why = "took longer than it may" if late else "was ended by the server's operator"
            raise HttpError(504 if late else 503, f"the request {why}")
        if item.finish_reason == "length":
            full = len(item.token_ids) < self._max_tokens
            return Stop("model_context_window_exceeded" if full else "max_tokens")
        if isinstance(item.stop_reason, str):
            return Stop("stop_sequence", item.stop_reason)
        return Stop("end_turn")
