"""Routes for development, which are there with ``--dev`` only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pegboard.api.endpoint import EndpointContext, Route
from pegboard.errors import ResourceError, UnsupportedError
from pegboard_server_openai.faults import HttpError, json_response
from pegboard_server_openai.reading import read_body
from pegboard_server_openai.state import ServerState

__all__ = ["AbortRequest", "routes"]


class AbortRequest(msgspec.Struct):
    """``POST /abort_requests``."""

    request_ids: list[str] | None = None
    """Ids of answers, or what clients gave as such; left out, all requests end."""


def routes(ctx: EndpointContext) -> Iterable[Route]:
    """What a developer asks, or trains a model with."""
    state: ServerState = ctx.server
    if not state.options.dev:
        return ()
    own = _Dev(state)
    return (
        Route("POST", "/abort_requests", own.abort, "End requests", body=AbortRequest),
        Route("POST", "/pause", own.pause, "Hold back new requests (?mode=wait or abort)"),
        Route("POST", "/resume", own.resume, "Let in what was held back"),
        Route("POST", "/start_profile", own.start_profile, "Record what the engine's process does"),
        Route("POST", "/stop_profile", own.stop_profile, "Write down what was recorded"),
        Route("GET", "/is_paused", own.paused, "Whether new requests are held back"),
        Route("POST", "/sleep", own.sleep, "Give memory back (?level=1 or 2, ?mode=abort or wait)"),
        Route("POST", "/wake_up", own.wake_up, "End it (?tags=weights and kv_cache; none: both)"),
        Route("GET", "/is_sleeping", own.sleeping, "Whether weights or cache sleep"),
    )


class _Dev:
    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def abort(self, request: Request) -> Response:
        raw = await request.body()
        body = read_body(raw, AbortRequest) if raw else AbortRequest()
        return json_response({"aborted": await self._abort(body.request_ids)})

    async def _abort(self, wanted: list[str] | None) -> int:
        """How many requests were ended."""
        chosen = [
            name
            for name, answer in self._state.live.items()
            if wanted is None or answer in wanted or answer.partition("-")[2] in wanted
        ]
        await self._state.engine.abort(chosen)
        return len(chosen)

    async def pause(self, request: Request) -> Response:
        mode = request.query_params.get("mode", "wait")
        if mode not in ("abort", "wait"):
            raise HttpError(
                400,
                f"mode={mode!r} is not allowed: wait (what runs goes on) or abort (it ends)",
                param="mode",
            )
        self._state.engine.pause()
        if mode == "abort":
            await self._abort(None)
        return json_response({"is_paused": True})

    async def resume(self, _: Request) -> Response:
        self._state.engine.resume()
        return json_response({"is_paused": False})

    async def paused(self, _: Request) -> Response:
        return json_response({"is_paused": self._state.engine.is_paused})

    async def start_profile(self, _: Request) -> Response:
        with _supported():
            await self._state.engine.start_profile()
        return json_response({"is_profiling": True})

    async def stop_profile(self, _: Request) -> Response:
        return json_response({"profile": await self._state.engine.stop_profile()})

    async def sleep(self, request: Request) -> Response:
        given = request.query_params
        level = given.get("level", "1")
        with _supported():
            number = int(level) if level in ("1", "2") else level
            await self._state.engine.sleep(number, given.get("mode", "abort"))
        return await self.sleeping(request)

    async def wake_up(self, request: Request) -> Response:
        with _supported():
            await self._state.engine.wake_up(request.query_params.getlist("tags") or None)
        return await self.sleeping(request)

    async def sleeping(self, _: Request) -> Response:
        return json_response({"is_sleeping": await self._state.engine.is_sleeping()})


@contextmanager
def _supported() -> Iterator[None]:
    """What this engine cannot do is answered 501, what it cannot do now 503."""
    try:
        yield
    except UnsupportedError as error:
        raise HttpError(501, str(error), code="not_supported") from error
    except ResourceError as error:
        raise HttpError(503, str(error), code="no_memory") from error
