"""From an error to an answer in OpenAI's form."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from pegboard.errors import (
    ConfigError,
    EngineDeadError,
    PegboardError,
    RequestError,
    UnsupportedError,
)

__all__ = ["HttpError", "error_body", "fault_of", "fault_response", "json_response"]

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


_HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    413: {"Connection": "close"},  # else the rest of the body would still be read
    415: {"Connection": "close"},
}


class HttpError(PegboardError):
    """An answer that is an error."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


def fault_of(error: BaseException) -> HttpError:
    """What a client is told of an error; nothing of the inside of those that are no deliberate
    ones."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, RequestError):
        return HttpError(400, str(error), param=error.field)
    if isinstance(error, (UnsupportedError, ConfigError)):
        return HttpError(400, str(error))
    if isinstance(error, EngineDeadError):
        return HttpError(503, f"the engine has stopped: {error}", code="engine_dead")
    if isinstance(error, PegboardError):
        return HttpError(500, str(error))
    return HttpError(500, "internal error; the server's log tells more")


def error_body(fault: HttpError) -> dict[str, Any]:
    """OpenAI's form of an error."""
    fallback = "invalid_request_error" if fault.status < 500 else "server_error"
    return {
        "error": {
            "message": str(fault),
            "type": _TYPES.get(fault.status, fallback),
            "param": fault.param,
            "code": fault.code,
        }
    }


def json_response(
    content: Any, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Any value that msgspec encodes."""
    body = msgspec.json.encode(content)
    return Response(body, status, headers, media_type="application/json")


def fault_response(fault: HttpError) -> Response:
    """The answer that is `fault`."""
    return json_response(error_body(fault), fault.status, _HEADERS.get(fault.status))
