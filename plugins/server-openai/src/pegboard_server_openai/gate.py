"""What stands before the application: the socket is open before the model is loaded, and after new
requests are taken."""

from __future__ import annotations

from typing import Any

import attrs
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, Response

from pegboard_server_openai.faults import HttpError, fault_response
from pegboard_server_openai.messages_errors import MessagesErrors
from pegboard_server_openai.sse import DIRECT_SEND

__all__ = ["Gate"]


@attrs.define
class Gate:
    """Answers 503 with the progress until `app` is set, then hands everything to it."""

    app: Any = None
    done: int = 0
    """Bytes that were loaded."""
    total: int = 0
    closing: bool = False
    """New requests are answered 503, since the server ends."""
    running: int = 0
    """Requests that are being answered."""

    def progress(self, done: int, total: int) -> None:
        """Told while the model loads, from any thread."""
        self.done, self.total = done, total

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif self.app is not None and not self.closing:
            self.running += 1
            scope[DIRECT_SEND] = send
            try:
                await self.app(scope, receive, send)
            finally:
                self.running -= 1
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1013})
        else:
            fault = self._why()
            wants_page = "text/html" in Headers(scope=scope).get("accept", "")
            response = self._page(fault) if wants_page else fault_response(fault)
            response.headers["retry-after"] = "1"
            await MessagesErrors(response)(scope, receive, send)

    def _why(self) -> HttpError:
        if self.closing:
            return HttpError(503, "the server is shutting down", code="shutting_down")
        share = f" ({100 * self.done // self.total} %)" if self.total else ""
        return HttpError(503, f"the model is being loaded{share}", code="loading")

    def _page(self, fault: HttpError) -> Response:
        """For people, whose browser asks again by itself."""
        value = f' value="{self.done}"' if self.total else ""
        text = (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width">'
            '<meta name="color-scheme" content="light dark"><title>Pegboard</title></head>'
            f'<body><p>{fault}</p><progress max="{self.total or 1}"{value}></progress></body>'
            "</html>"
        )
        headers = {"refresh": "1", "content-security-policy": "default-src 'none'"}
        return HTMLResponse(text, 503, headers)


async def _lifespan(receive: Any, send: Any) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
