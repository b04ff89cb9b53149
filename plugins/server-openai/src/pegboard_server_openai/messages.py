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
from pegboard_server_openai.keep_alive import KeepAlive
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
    MessageUsage,
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
PING_SECONDS = 10.0
"""Of silence, after which a stream sends a ping, unless the operator names another time."""


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
            asked = await ask(self._state, _chat(body, **own), name, shorten=True)
        batch = asked.batch
        answer = _Answer(model, body.max_tokens, asked.prompt_tokens)
        request_id = name.partition("-")[2]
        headers = {"request-id": request_id, "x-request-id": request_id}
        if body.stream:
            seconds = self._state.options.stream_keep_alive or PING_SECONDS
            alive = KeepAlive(seconds, answer.beat)
            return EventStream(answer.events(batch), batch.close, headers, alive)
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
    hints = {"reasoning_effort": effort_of(body)}
    return as_chat(body, messages, hints, continue_final_message=goes_on(messages), **own)


@attrs.define
class _Answer:
    """Makes the answer of one body from the states of its request."""

    _model: str
    _max_tokens: int
    """What the client allows; the context may have had room for less."""
    _prompt_tokens: int
    _id: str = attrs.field(factory=lambda: f"msg_{uuid.uuid4().hex}", init=False)
    _begun: bool = attrs.field(default=False, init=False)
    """The first event of a stream was made."""

    def whole(self, output: RequestOutput) -> Message:
        """The answer of a request that is complete."""
        stop = self._stop(output.outputs[0])
        message = self._message(message_usage(output))
        message.stop_reason, message.stop_sequence = stop.stop_reason, stop.stop_sequence
        text = output.outputs[0].text
        message.content = [TextBlock(text)] if text else []
        return message

    def beat(self) -> bytes:
        """What a stream says while the prompt is computed: its beginning must come first. How much
        of the prompt was in the cache is told at the end."""
        usage = MessageUsage(self._prompt_tokens, 0, 0)
        return (b"" if self._begun else self._start(usage)) + named_event(Ping())

    def _start(self, usage: MessageUsage) -> bytes:
        self._begun = True
        return named_event(MessageStart(self._message(usage)))

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
            news = cursor.take(output.outputs[0])
            if news is None:
                continue
            if not self._begun:
                yield self._start(message_usage(output))
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

    def _message(self, usage: MessageUsage) -> Message:
        return Message(id=self._id, model=self._model, content=[], usage=usage)

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
