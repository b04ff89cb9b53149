"""What stands between the socket and the routes: keys, sizes and numbers. Plain ASGI, for
speed."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
from collections.abc import Iterable
from typing import Any

from starlette._utils import get_route_path
from starlette.datastructures import Headers

from pegboard_server_openai.faults import HttpError, fault_response

__all__ = ["BodyGuard", "CrowdGuard", "KeyGuard"]

_DRAINED = 16 << 20
"""Bytes of a refused body that are still taken, beside as many as are allowed: clients that write
all of it before they read would see a broken connection and no answer."""
_PATIENCE = 5.0
"""Seconds that this may take."""


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


class BodyGuard:
    """Refuses bodies that are encoded, and those of more than `limit` bytes, also where their
    length is not told before."""

    def __init__(self, app: Any, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        fault = self._fault_of(Headers(scope=scope))
        if fault is not None:
            await fault_response(fault)(
                scope, receive, _Draining(receive, send, self._limit, fault.status)
            )
            return
        seen, end = 0, _Draining(receive, send, 0)

        async def counted() -> Any:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            end.more = message.get("more_body", False)
            if seen > self._limit:
                end.status = 413
                raise self._too_large()
            return message

        await self._app(scope, counted, end)

    def _fault_of(self, headers: Headers) -> HttpError | None:
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            return HttpError(
                415,
                f"a body with Content-Encoding {encoding[:40]!r} is not read; send it as it is",
                code="unsupported_content_encoding",
            )
        told = headers.get("content-length", "")
        return self._too_large() if told.isdigit() and int(told) > self._limit else None

    def _too_large(self) -> HttpError:
        message = f"the body has more than {self._limit} bytes (--max-body-bytes)"
        return HttpError(413, message, code="request_too_large")


class _Draining:
    """A `send` that ends an answer of status 413 or 415 only after the rest of the body was taken,
    or so much of it as is reasonable. The connection is closed then."""

    def __init__(self, receive: Any, send: Any, allowed: int, status: int = 0) -> None:
        """`allowed`: bytes of the limit of bodies that were not taken yet."""
        self._receive = receive
        self._send = send
        self._most = allowed + _DRAINED
        self.status = status
        """Of the refusal; 0: the body is not refused."""
        self.more = True
        """There is more of the body, for all that is known."""

    async def __call__(self, message: Any) -> None:
        last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if not (self.status and last):
            await self._send(message)
            return
        await self._send({**message, "more_body": True})
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._drain(), _PATIENCE)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _drain(self) -> None:
        taken = 0
        while self.more and taken < self._most:
            message = await self._receive()
            taken += len(message.get("body", b""))
            self.more = message.get("more_body", False)


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
