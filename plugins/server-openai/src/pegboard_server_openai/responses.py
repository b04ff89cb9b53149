"""``POST /v1/responses``."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import attrs
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from pegboard import CompletionOutput, RequestOutput, SamplingParams
from pegboard_server_openai.asking import as_chat, ask, renamed
from pegboard_server_openai.bodies import ChatRequest
from pegboard_server_openai.chat import chat_prompt
from pegboard_server_openai.conversation import Conversation, opened
from pegboard_server_openai.faults import HttpError, json_response
from pegboard_server_openai.named_events import named_event, stream_fault
from pegboard_server_openai.reading import read_body
from pegboard_server_openai.responses_bodies import (
    InputTokensRequest,
    Question,
    ResponsesRequest,
    check_question,
    check_request,
)
from pegboard_server_openai.responses_input import add_input, listed_items
from pegboard_server_openai.responses_replies import (
    Completed,
    Created,
    Event,
    Failed,
    Incomplete,
    IncompleteDetails,
    InProgress,
    ItemAdded,
    ItemDone,
    OutputMessage,
    OutputText,
    PartAdded,
    PartDone,
    Response,
    ResponseError,
    TextDelta,
    TextDone,
    response_usage,
)
from pegboard_server_openai.responses_store import ResponseStore
from pegboard_server_openai.scores import ScoreWriter, TokenScore
from pegboard_server_openai.sse import EventStream, whole_answer
from pegboard_server_openai.state import ServerState
from pegboard_server_openai.streams import Batch, Cursor

__all__ = ["Responses"]

_NAMES = {
    "messages": "input",
    "prompt": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
}
"""Fields of a chat, and where they come from."""

E = TypeVar("E", bound=Event)


class Responses:
    """The handlers; `store` is None where nothing is kept."""

    def __init__(self, state: ServerState, store: ResponseStore | None) -> None:
        self._state = state
        self._store = store

    async def create(self, request: Request) -> HttpResponse:
        """Answer one body."""
        body = read_body(await request.body(), ResponsesRequest)
        model = self._state.model_name(body.model)
        name = self._state.answer_id("resp", request, body.request_id)
        check_request(body)
        history = self._history(body)
        with renamed(_NAMES):
            asked = await ask(self._state, _chat(body, history), name)
        batch, params = asked.batch, asked.params
        store = None if body.store is False else self._store
        answer = _Answer(self._state, body, model, params, history, store)
        headers = {"x-request-id": name.partition("-")[2]}
        if body.stream:
            events, alive = answer.events(batch), self._state.keep_alive
            return EventStream(events, batch.close, headers, alive)
        return await whole_answer(
            request.receive, batch, lambda outputs: answer.whole(outputs[0]), headers
        )

    async def count(self, request: Request) -> HttpResponse:
        """How many tokens the prompt of a body has."""
        body = read_body(await request.body(), InputTokensRequest)
        self._state.model_name(body.model)
        check_question(body)
        with renamed(_NAMES):
            prompt = await chat_prompt(self._state, _chat(body, self._history(body)))
        return json_response({"object": "response.input_tokens", "input_tokens": len(prompt.ids)})

    def _history(self, body: Question) -> Conversation:
        """The messages up to the answer, without the instructions of the body."""
        previous = body.previous_response_id
        messages: list[dict[str, Any]] | None = []
        if previous is not None and self._store is None:
            raise HttpError(
                400,
                "previous_response_id is not supported: this server keeps no responses "
                "(--enable-response-store); send the whole conversation as input",
                param="previous_response_id",
            )
        if previous is not None and self._store is not None:
            messages = self._store.conversation(previous)
        if messages is None:
            raise HttpError(
                400,
                f"there is no response {previous!r}",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        history = Conversation(messages)
        add_input(history, body.input)
        return history


def _chat(body: Question, history: Conversation) -> ChatRequest:
    system = [body.instructions] if body.instructions else []
    own: dict[str, Any] = {}
    if isinstance(body, ResponsesRequest):
        own = {"max_completion_tokens": body.max_output_tokens, "stop": body.stop}
        if body.scored:
            own |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    hints = {
        "reasoning_effort": (body.reasoning or {}).get("effort"),
        "verbosity": (body.text or {}).get("verbosity"),
    }
    return as_chat(body, opened(system, history.messages), hints, **own)


@attrs.define
class _Answer:
    """Makes the answer of one body from the states of its request."""

    _state: ServerState
    _body: ResponsesRequest
    _model: str
    _params: SamplingParams
    _history: Conversation
    _store: ResponseStore | None
    _id: str = attrs.field(factory=lambda: f"resp_{uuid.uuid4().hex}", init=False)
    _item_id: str = attrs.field(factory=lambda: f"msg_{uuid.uuid4().hex}", init=False)
    _created: int = attrs.field(factory=lambda: int(time.time()), init=False)
    _count: int = attrs.field(default=0, init=False)
    """Events so far."""

    def whole(self, output: RequestOutput) -> Response:
        """The answer of a request that is complete; kept, if it is to be."""
        item = output.outputs[0]
        scores: list[TokenScore] = []
        writer = self._writer()
        if writer is not None and item.logprobs is not None:
            scores = writer.chat(item.token_ids, item.logprobs).content
        return self._ended(output, OutputText(item.text, logprobs=scores))

    async def events(self, batch: Batch) -> AsyncIterator[bytes]:
        """The answer piece by piece."""
        yield self._event(Created, response=self._response("in_progress"))
        yield self._event(InProgress, response=self._response("in_progress"))
        try:
            async for data in self._pieces(batch):
                yield data
        except Exception as error:
            yield self._event(Failed, response=self._failed(error, batch))

    async def _pieces(self, batch: Batch) -> AsyncIterator[bytes]:
        cursor, writer = Cursor(), self._writer()
        whole = OutputText(logprobs=[])
        async for _, output in batch.states():
            fresh = cursor.fresh
            news = cursor.take(output.outputs[0])
            if news is None:
                continue
            if fresh:
                yield self._event(ItemAdded, item=OutputMessage(self._item_id, "in_progress"))
                yield self._event(PartAdded, item_id=self._item_id, part=OutputText())
            scores: list[TokenScore] = []
            if writer is not None and news.scores:
                scores = writer.chat(news.ids, news.scores).content
            whole.logprobs += scores
            if news.text or scores:
                yield self._event(
                    TextDelta, item_id=self._item_id, delta=news.text, logprobs=scores
                )
        output = batch.latest[0]
        whole.text = output.outputs[0].text
        response = self._ended(output, whole)
        yield self._event(TextDone, item_id=self._item_id, text=whole.text, logprobs=whole.logprobs)
        yield self._event(PartDone, item_id=self._item_id, part=whole)
        yield self._event(ItemDone, item=response.output[0])
        last = Completed if response.status == "completed" else Incomplete
        yield self._event(last, response=response)

    def _ended(self, output: RequestOutput, text: OutputText) -> Response:
        reason = _why_incomplete(output.outputs[0])
        status = "incomplete" if reason else "completed"
        response = self._response(status)
        response.output = [OutputMessage(self._item_id, status, [text])]
        response.usage = response_usage(output)
        response.completed_at = None if reason else int(time.time())
        response.incomplete_details = IncompleteDetails(reason) if reason else None
        self._keep(response)
        return response

    def _failed(self, error: Exception, batch: Batch) -> Response:
        response = self._response("failed")
        response.error = ResponseError(str(stream_fault(error)))
        if 0 in batch.latest:
            text = OutputText(batch.latest[0].outputs[0].text)
            response.output = [OutputMessage(self._item_id, "incomplete", [text])]
            response.usage = response_usage(batch.latest[0])
        return response

    def _keep(self, response: Response) -> None:
        if self._store is not None:
            said = Conversation(self._history.messages)
            said.say("assistant", [response.output[0].content[0].text])
            self._store.put(self._id, response, said.messages, listed_items(self._body.input))

    def _response(self, status: str) -> Response:
        body = self._body
        return Response(
            id=self._id,
            created_at=self._created,
            status=status,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            max_tool_calls=body.max_tool_calls,
            metadata=body.metadata or {},
            model=self._model,
            parallel_tool_calls=body.parallel_tool_calls is not False,
            previous_response_id=body.previous_response_id,
            prompt_cache_key=body.prompt_cache_key,
            reasoning={"effort": None, "summary": None, **(body.reasoning or {})},
            safety_identifier=body.safety_identifier,
            store=self._store is not None,
            temperature=self._params.temperature,
            text={"format": {"type": "text"}, **(body.text or {})},
            tool_choice=body.tool_choice or "auto",
            top_logprobs=body.top_logprobs or 0,
            top_p=self._params.top_p,
            user=body.user,
        )

    def _event(self, kind: type[E], **fields: Any) -> bytes:
        data = named_event(kind(sequence_number=self._count, **fields))
        self._count += 1
        return data

    def _writer(self) -> ScoreWriter | None:
        if not self._body.scored:
            return None
        return ScoreWriter(self._state.engine.get_tokenizer(), self._body.top_logprobs or 0)


def _why_incomplete(item: CompletionOutput) -> str | None:
    """None for an answer that ended by itself."""
    if item.finish_reason == "length":
        return "max_output_tokens"
    if item.finish_reason == "abort":
        return str(item.stop_reason or "abort")
    return None
