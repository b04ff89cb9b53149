"""Errors in Anthropic's form."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette._utils import get_route_path
from starlette.datastructures import MutableHeaders

from pegboard_server_openai.faults import HttpError
from pegboard_server_openai.messages_replies import ErrorEvent, Fault

__all__ = ["MessagesErrors", "error_event"]

_PATH = "/v1/messages"
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_event(fault: HttpError) -> ErrorEvent:
    """The form of an error."""
    return _form(fault.status, str(fault))


def _form(status: int, message: str) -> ErrorEvent:
    fallback = "invalid_request_error" if status < 500 else "api_error"
    return ErrorEvent(Fault(_TYPES.get(status, fallback), message))


class MessagesErrors:
    """Brings what answers with an error under ``/v1/messages`` into the form that clients of this
    route read, whoever answers: a guard, the router, a handler. Plain ASGI."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and _concerned(get_route_path(scope)):
            send = _Rewriter(send)
        await self._app(scope, receive, send)


def _concerned(path: str) -> bool:
    return path == _PATH or path.startswith(f"{_PATH}/")


class _Rewriter:
    """Sends on what is no error; of an error, first everything is taken, then another is sent."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self._start: Any = None
        """Of an answer that is an error."""
        self._body = b""

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start" and message["status"] >= 400:
            self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._finish()

    async def _finish(self) -> None:
        start = {**self._start, "headers": list(self._start["headers"])}
        data = msgspec.json.encode(_form(start["status"], _message(self._body)))
        headers = MutableHeaders(raw=start["headers"])
        headers["content-length"] = str(len(data))
        headers["content-type"] = "application/json"
        await self._send(start)
        await self._send({"type": "http.response.body", "body": data, "more_body": False})


def _message(body: bytes) -> str:
    """What an error says, in OpenAI's form or in none."""
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, LookupError, TypeError):
        return body.decode(errors="replace") or "the request failed"
