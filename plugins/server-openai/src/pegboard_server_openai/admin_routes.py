"""Health, version, load, plugins, settings and the cache."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pegboard import EngineConfig, __version__
from pegboard.api.endpoint import EndpointContext, Route
from pegboard_server_openai.faults import HttpError, json_response
from pegboard_server_openai.options import AppOptions
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
        Route("GET", "/server_info", own.info, "The settings, without secrets"),
        Route("POST", "/reset_prefix_cache", own.reset, "Forget the cached blocks"),
    )


class _Admin:
    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._engine = state.engine

    async def health(self, _: Request) -> Response:
        await self._engine.check_health()
        if self._state.silent_too_long:
            seconds = round(self._engine.silent_for)
            raise HttpError(503, f"the engine is silent for {seconds} s", code="engine_hung")
        return Response(status_code=200)

    async def version(self, _: Request) -> Response:
        return json_response({"version": __version__})

    async def load(self, _: Request) -> Response:
        return json_response({"server_load": self._engine.num_live_requests})

    async def plugins(self, _: Request) -> Response:
        return json_response({"plugins": self._engine.plugins()})

    async def info(self, _: Request) -> Response:
        return json_response(
            {
                "version": __version__,
                "python": platform.python_version(),
                "engine": _engine_facts(self._engine.config),
                "server": _server_facts(self._state.options),
            }
        )

    async def reset(self, _: Request) -> Response:
        return json_response({"reset": await self._engine.reset_prefix_cache()})


def _engine_facts(config: EngineConfig) -> dict[str, Any]:
    """The settings. Of those that plugins read, which may be secret, the keys only."""
    facts = {}
    for name, value in attrs.asdict(config).items():
        facts[name] = _keys(value) if isinstance(value, Mapping) else value
    return dict(msgspec.to_builtins(facts, enc_hook=str))


def _keys(given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: sorted(value) if isinstance(value, Mapping) else "set" if value is not None else None
        for key, value in given.items()
    }


def _server_facts(options: AppOptions) -> dict[str, Any]:
    facts = attrs.asdict(options, filter=attrs.filters.exclude("api_keys"))
    return {**facts, "api_keys": len(options.api_keys)}
