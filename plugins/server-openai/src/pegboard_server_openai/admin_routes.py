"""Health, version, load, plugins and the cache."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response

from pegboard import __version__
from pegboard.api.endpoint import EndpointContext, Route
from pegboard_server_openai.faults import json_response
from pegboard_server_openai.state import ServerState

__all__ = ["routes"]


def routes(ctx: EndpointContext) -> Iterable[Route]:
    """What operators and load balancers ask."""
    own = _Admin(ctx.server)
    return (
        Route("GET", "/health", own.health, "200 if requests can be served", public=True),
        Route("GET", "/ping", own.health, "As /health", public=True),
        Route("POST", "/ping", own.health, "As /health", public=True),
        Route("GET", "/version", own.version, "The version of Pegboard", public=True),
        Route("GET", "/load", own.load, "How many requests there are"),
        Route("GET", "/plugins", own.plugins, "What is installed, loaded and used"),
        Route("POST", "/reset_prefix_cache", own.reset, "Forget the cached blocks"),
    )


class _Admin:
    def __init__(self, state: ServerState) -> None:
        self._engine = state.engine

    async def health(self, _: Request) -> Response:
        await self._engine.check_health()
        return Response(status_code=200)

    async def version(self, _: Request) -> Response:
        return json_response({"version": __version__})

    async def load(self, _: Request) -> Response:
        return json_response({"server_load": self._engine.num_live_requests})

    async def plugins(self, _: Request) -> Response:
        return json_response({"plugins": self._engine.plugins()})

    async def reset(self, _: Request) -> Response:
        return json_response({"reset": await self._engine.reset_prefix_cache()})
