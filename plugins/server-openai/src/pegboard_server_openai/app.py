"""The application: routes of all plugins behind the guards."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette._utils import get_route_path
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from pegboard import __version__
from pegboard.api.endpoint import EndpointContext, Handler, Route
from pegboard.errors import DuplicateError, PluginError
from pegboard_server_openai.engine import Engine
from pegboard_server_openai.faults import HttpError, fault_of, fault_response, json_response
from pegboard_server_openai.guards import BodyGuard, CrowdGuard, KeyGuard
from pegboard_server_openai.http_figures import HttpFigures
from pegboard_server_openai.messages_errors import MessagesErrors
from pegboard_server_openai.options import AppOptions
from pegboard_server_openai.state import ServerState
from pegboard_server_openai.streams import note_trace

__all__ = ["AppOptions", "build_app", "collect_routes", "make_routes"]

Known = frozenset[tuple[str, str]]
"""Methods and paths of all routes."""

_LOG = logging.getLogger("pegboard.plugin.server-openai")


def build_app(engine: Engine, options: AppOptions) -> Any:
    """The ASGI application. Raises `DuplicateError` for a route that two plugins add, or that the
    server has itself."""
    state = ServerState(engine, options.names, options.root, options)
    app = FastAPI(
        title="Pegboard",
        version=__version__,
        redirect_slashes=False,
        root_path=options.root_path,
    )
    routes = collect_routes(
        engine.board, state, [getattr(route, "path", "") for route in app.routes]
    )
    known = frozenset((method, route.path) for route in routes for method in _methods(route))
    app.add_exception_handler(HTTPException, _error_handler(known))
    engine.uses("endpoint", engine.board.registry("endpoint").names())
    for route in sorted(routes, key=_generality):
        _add(app, route, known)
    app.openapi = _described(app, routes)  # type: ignore[method-assign]
    public = {
        (method, path)
        for route in routes
        if route.public
        for method in _methods(route)
        for path in (route.path, f"{route.path}/")  # which is led to the other
    }
    inner: Any = BodyGuard(app, options.max_body_bytes)
    if options.max_concurrent_requests is not None:
        inner = CrowdGuard(inner, options.max_concurrent_requests)
    guarded = KeyGuard(inner, options.api_keys, public)
    paths = frozenset(route.path for route in routes)
    return CORSMiddleware(
        MessagesErrors(HttpFigures(guarded, state.http, paths)),
        allow_origins=options.allowed_origins,
        allow_methods=options.allowed_methods,
        allow_headers=options.allowed_headers,
        allow_credentials=options.allow_credentials,
        expose_headers=["x-request-id"],
    )


def collect_routes(board: Any, state: ServerState, own: Iterable[str] = ()) -> list[Route]:
    """The routes of all endpoints on the board; the paths `own` are the server's."""
    owners = {("GET", path): ("the server itself", "") for path in map(_pattern, own)}
    found: list[Route] = []
    for endpoint in board.registry("endpoint"):
        name = endpoint.name
        board.require("endpoint", name, wanted_by="the HTTP server")
        owner = f"endpoint {name!r} of {board.registry('endpoint').provenance(name)}"
        ctx = EndpointContext(state.engine, state, **board.handed("endpoint", name))
        for route in make_routes(endpoint.routes.load(), ctx, owner):
            key = (route.method, _pattern(route.path))
            if key in owners:
                first, other = owners[key]
                ways = board.ways_out(("endpoint", one) for one in (other, name) if one)
                raise DuplicateError(
                    f"route {route.method} {route.path} is added by {first} and by {owner}"
                    + (f"; {ways}" if ways else "")
                )
            owners[key] = owner, name
            found.append(route)
    return found


def _pattern(path: str) -> str:
    """What a path matches: the names of its parts do not count."""
    return re.sub(r"\{[^{}:]*(:[^{}]*)?\}", r"{\1}", path)


def _generality(route: Route) -> list[tuple[bool, bool]]:
    """Routes sorted by it stand before those that match their paths too: of two parts of a path,
    one that is written out comes first, one that may hold slashes last."""
    return [("{" in part, ":" in part) for part in route.path.split("/")]


def make_routes(
    make: Callable[[EndpointContext], Any], ctx: EndpointContext, owner: str
) -> list[Route]:
    """The routes of one endpoint. Raises `PluginError`, which names it, for what is none."""
    try:
        made = make(ctx)
        routes = list(made) if isinstance(made, Iterable) else None
    except PluginError as error:
        raise PluginError(f"{owner}: {error}") from error
    if routes is None or not all(isinstance(route, Route) for route in routes):
        raise PluginError(
            f"{owner}: its callable must return an iterable of Route, it returned {made!r}"
        )
    for route in routes:
        if not callable(route.handler):
            raise PluginError(
                f"{owner}: the handler of {route.method} {route.path} cannot be called: "
                f"{route.handler!r}"
            )
    return routes


def _is_async(handler: Handler) -> bool:
    """Whether it is a coroutine function, or an object that is called as one."""
    return any(map(inspect.iscoroutinefunction, (handler, type(handler).__call__)))


def _methods(route: Route) -> tuple[str, ...]:
    return ("GET", "HEAD") if route.method == "GET" else (route.method,)


def _add(app: FastAPI, route: Route, known: Known) -> None:
    extra: dict[str, Any] = {}
    if route.body is not None:
        schema = {"$ref": f"#/components/schemas/{route.body.__name__}"}
        content = {"application/json": {"schema": schema}}
        extra["requestBody"] = {"required": True, "content": content}
    endpoint = _endpoint(route.handler, known)
    for method in _methods(route):
        app.add_api_route(
            route.path,
            endpoint,
            methods=[method],
            summary=route.summary or None,
            name=f"{route.method.lower()}{route.path}",
            include_in_schema=method == route.method,
            response_model=None,
            openapi_extra=extra or None,
        )


def _endpoint(handler: Handler, known: Known) -> Callable[[Request], Awaitable[Response]]:
    """The handler as FastAPI wants it, which looks at annotations; a plain one on a thread. Where
    the rest of a path that it takes is empty, a route without it is meant, if there is one."""
    is_async = _is_async(handler)

    async def endpoint(request: Request) -> Response:
        led = _led(request, known) if "" in request.path_params.values() else None
        if led is not None:
            return led
        note_trace(request.headers)
        try:
            answer = handler(request) if is_async else await run_in_threadpool(handler, request)
            answer = await answer if inspect.isawaitable(answer) else answer
            return answer if isinstance(answer, Response) else json_response(answer)
        except Exception as error:
            return _answer_of(error)

    return endpoint


def _described(app: FastAPI, routes: Iterable[Route]) -> Callable[[], dict[str, Any]]:
    """FastAPI's description with the bodies, which are no pydantic models."""
    make = app.openapi
    kinds = [route.body for route in routes if route.body is not None]

    def openapi() -> dict[str, Any]:
        described = make()
        _, parts = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
        described.setdefault("components", {}).setdefault("schemas", {}).update(parts)
        return described

    return openapi


def _error_handler(known: Known) -> Any:
    """What answers where no route does: a path that ends in one slash too many is led to the
    route that is meant, others are errors."""

    async def handle(request: Request, error: Exception) -> Response:
        return _led(request, known) or _http_error(error)

    return handle


def _led(request: Request, known: Known) -> Response | None:
    """Leads a path that ends in one slash too many to the route that is meant, if there is one."""
    path, slash, rest = get_route_path(request.scope).rpartition("/")
    if not slash or rest or (request.method, path) not in known:
        return None
    # Relative, since a proxy may have taken a prefix away.
    query = request.url.query
    place = f"../{path.rpartition('/')[2]}" + (f"?{query}" if query else "")
    return Response(status_code=307, headers={"location": place})


def _http_error(error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    fault = HttpError(error.status_code, str(error.detail))
    response = fault_response(fault)
    headers: Mapping[str, str] = error.headers or {}
    response.headers.update(headers)
    return response


def _answer_of(error: Exception) -> Response:
    fault = fault_of(error)
    if fault.status == 500:
        _LOG.error("a request failed", exc_info=error)
    return fault_response(fault)
