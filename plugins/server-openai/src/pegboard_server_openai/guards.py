"""What stands between the socket and the routes: keys, sizes and numbers. Plain ASGI, for
speed."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Any

from starlette._utils import get_route_path
from starlette.datastructures import Headers

from pegboard_server_openai.faults import HttpError, fault_response

__all__ = ["CrowdGuard", "KeyGuard", "SizeGuard"]


class KeyGuard:
    """Lets requests in that bring one of the keys, and those for public routes.

    Public is what the router would lead to a public route: exactly its method and path, after the
    same decoding. All else needs a key, also what there is no route for.
    """

    def __init__(self, app: Any, keys: Iterable[str], public: Iterable[tuple[str, str]]) -> None:
        """`public`: pairs of method and path."""
        self._app = app
        self._digests = [_digest(key) for key in keys]
        self._public = frozenset(public)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or self._admits(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            fault = HttpError(
                401,
                "an API key is needed: 'Authorization: Bearer KEY'",
                code="invalid_api_key",
            )
            await fault_response(fault)(scope, receive, send)

    def _admits(self, scope: Any) -> bool:
        if not self._digests:
            return True
        if scope["type"] == "http" and (scope["method"], get_route_path(scope)) in self._public:
            return True
        headers = Headers(scope=scope)
        scheme, _, given = headers.get("authorization", "").partition(" ")
        key = given.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        # All are compared, so that the time tells nothing of which one is nearly right.
        wanted = _digest(key)
        return sum(hmac.compare_digest(wanted, digest) for digest in self._digests) > 0


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


class SizeGuard:
    """Refuses bodies of more than `limit` bytes, also where their length is not told before."""

    def __init__(self, app: Any, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        told = Headers(scope=scope).get("content-length", "")
        if told.isdigit() and int(told) > self._limit:
            await fault_response(self._fault())(scope, receive, send)
            return
        seen = 0

        async def counted() -> Any:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:
                raise self._fault()
            return message

        await self._app(scope, counted, send)

    def _fault(self) -> HttpError:
        message = f"the body has more than {self._limit} bytes"
        return HttpError(413, message, code="request_too_large")


class CrowdGuard:
    """Refuses work under ``/v1`` while `limit` requests of it are being answered."""

    def __init__(self, app: Any, limit: int) -> None:
        self._app = app
        self._limit = limit
        self._running = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        work = scope["type"] == "http" and scope["method"] == "POST"
        if not work or not get_route_path(scope).startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        if self._running >= self._limit:
            response = fault_response(
                HttpError(429, f"{self._limit} requests run already", code="too_many_requests")
            )
            response.headers["retry-after"] = "1"
            await response(scope, receive, send)
            return
        self._running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running -= 1
