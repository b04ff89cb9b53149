"""The application while there is none yet: the socket is open before the model is loaded."""

from __future__ import annotations

from typing import Any

import attrs
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, Response

from pegboard_server_openai.faults import HttpError, fault_response

__all__ = ["Gate"]


@attrs.define
class Gate:
    """Answers 503 with the progress until `app` is set, then hands everything to it."""

    app: Any = None
    done: int = 0
    """Bytes that were loaded."""
    total: int = 0

    def progress(self, done: int, total: int) -> None:
        """Told while the model loads, from any thread."""
        self.done, self.total = done, total

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif self.app is not None:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1013})
        else:
            await self._wait(scope, receive, send)

    async def _wait(self, scope: Any, receive: Any, send: Any) -> None:
        share = f" ({100 * self.done // self.total} %)" if self.total else ""
        fault = HttpError(503, f"the model is being loaded{share}", code="loading")
        if "text/html" in Headers(scope=scope).get("accept", ""):
            response = self._page(str(fault))
        else:
            response = fault_response(fault)
        response.headers["retry-after"] = "1"
        await response(scope, receive, send)

    def _page(self, message: str) -> Response:
        """For people, whose browser asks again by itself."""
        value = f' value="{self.done}"' if self.total else ""
        text = (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width">'
            '<meta name="color-scheme" content="light dark"><title>Pegboard</title></head>'
            f'<body><p>{message}</p><progress max="{self.total or 1}"{value}></progress></body>'
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
