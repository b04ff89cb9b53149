"""Who answers: a server, or a model in a process of its own. Both stream pieces of text."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple, Protocol

import attrs
import httpx
import msgspec

from pegboard.errors import RequestError
from pegboard_client.options import LoadingLine
from pegboard_client.server import Server, ServerError, checked, choose_model, network_faults, told
from pegboard_client.sse import DONE, Events, Frame, read_frame

__all__ = ["Ask", "LocalTalker", "Piece", "RemoteTalker", "Talker", "local_talker", "remote_talker"]

Ask = str | list[dict[str, str]]
"""A text to go on with, or a conversation."""


class Piece(NamedTuple):
    """What an answer grew by."""

    text: str
    finish_reason: str | None = None


class Talker(Protocol):
    """Answers; where the reader closes the generator early, the request is dropped."""

    @property
    def name(self) -> str:
        """Of the model."""
        ...

    def answer(self, ask: Ask) -> AsyncGenerator[Piece, None]:
        """Raises `PegboardError` for what cannot be answered."""
        ...


@attrs.frozen
class RemoteTalker:
    """A server of OpenAI's API."""

    server: Server
    client: httpx.AsyncClient
    name: str
    sampling: Mapping[str, Any]
    """Fields of the body, as OpenAI calls them."""

    async def answer(self, ask: Ask) -> AsyncGenerator[Piece, None]:
        """Streams; the connection is closed at the end, whatever that is."""
        chat = not isinstance(ask, str)
        path = "/v1/chat/completions" if chat else "/v1/completions"
        given = {"messages": ask} if chat else {"prompt": ask}
        body = {"model": self.name, "stream": True, **given, **self.sampling}
        with network_faults(self.server):
            async with self.client.stream("POST", path, json=body) as reply:
                if reply.status_code >= 400:
                    checked(self.server, reply.status_code, await reply.aread())
                async with aclosing(self._pieces(reply)) as pieces:
                    async for piece in pieces:
                        yield piece

    async def _pieces(self, reply: httpx.Response) -> AsyncGenerator[Piece, None]:
        events, ended = Events(), False
        async with aclosing(reply.aiter_bytes()) as parts:  # type: ignore[type-var]
            async for data in parts:
                for event in events.feed(data):
                    ended = ended or event == DONE
                    for choice in () if event == DONE else self._frame(event).choices:
                        yield Piece(choice.shown, choice.finish_reason)
        if not ended:
            raise ServerError(f"{self.server.base} broke its answer off")

    def _frame(self, event: bytes) -> Frame:
        try:
            frame = read_frame(event)
        except msgspec.DecodeError as error:
            raise ServerError(f"{self.server.base} sent what is no chunk: {error}") from error
        if frame.error is not None:
            raise ServerError(f"{self.server.base} broke off: {told(0, event)}")
        return frame


@asynccontextmanager
async def remote_talker(
    server: Server, model: str | None, sampling: Mapping[str, Any], seconds: float | None
) -> AsyncIterator[RemoteTalker]:
    """Looks whether the server and the model are there."""
    async with server.client(seconds=seconds) as client:
        name = await choose_model(client, server, model)
        yield RemoteTalker(server, client, name, sampling)


@attrs.frozen
class LocalTalker:
    """A model whose engine has a process of its own."""

    llm: Any
    """A `pegboard.AsyncLLM`."""
    name: str
    params: Any
    """A `pegboard.SamplingParams`."""

    async def answer(self, ask: Ask) -> AsyncGenerator[Piece, None]:
        """Streams what the states add."""
        prompt = ask if isinstance(ask, str) else await self.llm.apply_chat_template(ask)
        shown = 0
        async with aclosing(self.llm.generate(prompt, self.params)) as states:
            async for state in states:
                (item,) = state.outputs
                if item.error:
                    raise RequestError(item.error)
                yield Piece(item.text[shown:], item.finish_reason)
                shown = len(item.text)


@asynccontextmanager
async def local_talker(
    model: str, settings: Mapping[str, Any], sampling: Mapping[str, Any]
) -> AsyncIterator[LocalTalker]:
    """Loads the model, and ends its process at the end."""
    from pegboard import AsyncLLM, SamplingParams  # the engine's front end takes a while to import

    SamplingParams(**sampling)  # a bad value is found before the model is loaded
    if "PEGBOARD_LOG_LEVEL" not in os.environ:
        logging.getLogger("pegboard").setLevel(logging.WARNING)  # the talk is what is to be seen
    line = LoadingLine()
    try:
        llm = AsyncLLM(model, progress=line, **settings)
    finally:
        line.finish()
    try:
        params = msgspec.structs.replace(llm.get_default_sampling_params(), **sampling)
        yield LocalTalker(llm, model, params)
    finally:
        await llm.shutdown()
