"""What the other APIs have in common with ``/v1/chat/completions``: from a body to a request of the
engine."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import msgspec

from pegboard import SamplingParams
from pegboard.errors import RequestError
from pegboard_server_openai.bodies import ChatRequest
from pegboard_server_openai.chat import chat_prompt
from pegboard_server_openai.faults import HttpError
from pegboard_server_openai.sampling import chat_params
from pegboard_server_openai.state import ServerState
from pegboard_server_openai.streams import Batch

__all__ = ["Asked", "Extras", "as_chat", "ask", "refuse", "renamed"]


class Extras(msgspec.Struct, kw_only=True):
    """Fields that mean the same as in a chat. Those after `top_p` are additions to both APIs
    (`top_k` to OpenAI's only)."""

    model: str | None = None
    """A served name; left out, the first."""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    extra_args: dict[str, Any] | None = None
    priority: int | None = None
    timeout: float | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


def as_chat(
    body: Extras, messages: list[dict[str, Any]], hints: Mapping[str, Any], **own: Any
) -> ChatRequest:
    """The body as one of a chat; `hints`: for the template, those that are texts are taken."""
    given = {name: getattr(body, name) for name in Extras.__struct_fields__}
    own |= {name: value for name, value in hints.items() if isinstance(value, str)}
    return ChatRequest(messages=messages, **given, **own)


@attrs.frozen
class Asked:
    """A chat that was queued."""

    batch: Batch
    params: SamplingParams
    prompt_tokens: int


async def ask(
    state: ServerState, chat: ChatRequest, answer_id: str, *, shorten: bool = False
) -> Asked:
    """Queue the request of a chat.

    `shorten`: an answer for which the context has no room may be as long as there is. Raises
    `HttpError` or `RequestError` for what is not allowed.
    """
    params = chat_params(chat, state.engine.get_default_sampling_params())
    prompt = await chat_prompt(state, chat)
    length = len(prompt.ids)
    room = state.engine.max_model_len - length
    if shorten and params.max_tokens is not None and 1 <= room < params.max_tokens:
        params = msgspec.structs.replace(params, max_tokens=room)
    if chat.cache_salt is not None:
        prompt = {"prompt_token_ids": prompt.ids, "cache_salt": chat.cache_salt}
    batch = await Batch.open(state, answer_id, [prompt], params, chat.priority, chat.timeout)
    return Asked(batch, params, length)


def refuse(body: Any, reasons: Mapping[str, str]) -> None:
    """Raise `HttpError` 400 for a field that is given and not served; empty ones pass."""
    for name, reason in reasons.items():
        if getattr(body, name):
            raise HttpError(400, f"{name} is not supported: {reason}; leave it out", param=name)


@contextlib.contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Errors that blame a field of a chat blame the field of the body instead."""
    try:
        yield
    except (HttpError, RequestError) as error:
        field = error.param if isinstance(error, HttpError) else error.field
        if field is None or field not in names:
            raise
        text = re.sub(rf"^{field}(?=[=\[.])", names[field], str(error))
        status, code = (error.status, error.code) if isinstance(error, HttpError) else (400, None)
        raise HttpError(status, text, param=names[field], code=code) from error
