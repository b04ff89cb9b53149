"""Routes under ``/v1/responses``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pegboard.api.endpoint import EndpointContext, Route
from pegboard_server_openai.faults import HttpError, json_response
from pegboard_server_openai.responses import Responses
from pegboard_server_openai.responses_bodies import InputTokensRequest, ResponsesRequest
from pegboard_server_openai.responses_store import ResponseStore

__all__ = ["routes"]


def routes(ctx: EndpointContext) -> Iterable[Route]:
    """Responses, and those that are kept."""
    store = ResponseStore() if ctx.server.options.enable_response_store else None
    own = Responses(ctx.server, store)
    kept = _Kept(store)
    path = "/v1/responses"
    return (
        Route("POST", path, own.create, "Answer a text or items", body=ResponsesRequest),
        Route(
            "POST",
            f"{path}/input_tokens",
            own.count,
            "Count the tokens of a text or items",
            body=InputTokensRequest,
        ),
        Route("GET", f"{path}/{{name}}", kept.read, "A response that is kept"),
        Route("DELETE", f"{path}/{{name}}", kept.remove, "Forget a response"),
        Route("GET", f"{path}/{{name}}/input_items", kept.items, "The input of one that is kept"),
        Route("POST", f"{path}/{{name}}/cancel", kept.cancel, "Refused: none is in background"),
    )


class _Kept:
    def __init__(self, store: ResponseStore | None) -> None:
        self._store = store

    async def read(self, request: Request) -> Response:
        if request.query_params.get("stream", "false").lower() not in ("false", "0", ""):
            raise HttpError(
                400,
                "stream is not supported here: only a response made in the background could be "
                "streamed again, and none is",
                param="stream",
            )
        return Response(self._found(request), media_type="application/json")

    async def remove(self, request: Request) -> Response:
        self._found(request)
        name = request.path_params["name"]
        assert self._store is not None
        self._store.remove(name)
        return json_response({"id": name, "object": "response", "deleted": True})

    async def cancel(self, request: Request) -> Any:
        self._found(request)
        raise HttpError(
            400,
            "only a response made in the background can be cancelled, and none is; a client that "
            "closes its connection ends its request",
        )

    async def items(self, request: Request) -> Response:
        """A page of the input's items, the latest first unless it is said otherwise."""
        self._found(request)
        assert self._store is not None
        items = self._store.items(request.path_params["name"]) or []
        query = request.query_params
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise HttpError(400, f"order={order!r} is not allowed: asc or desc", param="order")
        limit = _limit(query.get("limit", "20"))
        if order == "desc":
            items.reverse()
        rest = _after(items, query.get("after"))
        page = rest[:limit]
        return json_response(
            {
                "object": "list",
                "data": page,
                "first_id": page[0]["id"] if page else None,
                "last_id": page[-1]["id"] if page else None,
                "has_more": len(rest) > limit,
            }
        )

    def _found(self, request: Request) -> bytes:
        name = request.path_params["name"]
        if self._store is None:
            raise HttpError(
                404,
                f"there is no response {name!r}: this server keeps none (--enable-response-store)",
            )
        data = self._store.response(name)
        if data is None:
            raise HttpError(404, f"there is no response {name!r}")
        return data


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 4 and 1 <= int(text) <= 100):
        raise HttpError(400, f"limit={text[:20]!r} is not allowed: 1 to 100", param="limit")
    return int(text)


def _after(items: list[dict[str, Any]], name: str | None) -> list[dict[str, Any]]:
    """Those behind the item of that id."""
    if name is None:
        return items
    for place, item in enumerate(items):
        if item["id"] == name:
            return items[place + 1 :]
    raise HttpError(400, f"after={name[:80]!r} is not allowed: the id of an item", param="after")
