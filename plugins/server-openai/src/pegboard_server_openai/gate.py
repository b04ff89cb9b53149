"""What stands before the application: the socket is open before the model is loaded, and after new
requests are taken."""

from __future__ import annotations

from typing import Any

import attrs

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
            response = fault_response(self._why())
            response.headers["retry-after"] = "1"
            await MessagesErrors(response)(scope, receive, send)

    def _why(self) -> HttpError:
        if self.closing:
            return HttpError(503, "the server is shutting down", code="shutting_down")
        share = f" ({100 * self.done // self.total} %)" if self.total else ""
        return HttpError(503, f"the model is being loaded{share}", code="loading")


async def _lifespan(receive: Any, send: Any) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
