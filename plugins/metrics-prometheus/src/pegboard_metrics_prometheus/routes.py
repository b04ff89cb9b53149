"""``GET /metrics``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response

from pegboard.api.endpoint import EndpointContext, Route
from pegboard.api.metrics import MetricReading
from pegboard.errors import EngineDeadError
from pegboard_metrics_prometheus.http_requests import HttpRequests
from pegboard_metrics_prometheus.plugin_figures import PluginFigures
from pegboard_metrics_prometheus.recorder import PrometheusRecorder
from pegboard_metrics_prometheus.settings import Settings

__all__ = ["routes"]

_PATIENCE = 1.0
"""Seconds that the engine gets to say what its plugins count."""


def routes(ctx: EndpointContext) -> Iterable[Route]:
    """What Prometheus asks."""
    settings: Settings = ctx.settings or Settings()
    recorder = getattr(ctx.engine, "recorders", {}).get("prometheus")
    if recorder is not None:
        for name in getattr(ctx.server, "names", ())[:1]:
            recorder.serve_as(name)
    about = "Metrics in Prometheus form"
    handler = _Metrics(ctx.engine, recorder, getattr(ctx.server, "http", None)).answer
    return (Route("GET", "/metrics", handler, about, public=settings.public),)


class _Metrics:
    def __init__(self, engine: Any, recorder: PrometheusRecorder | None, http: Any = None) -> None:
        """`http`: the server's tally of requests, if it has one."""
        self._engine = engine
        self._recorder = recorder
        self._http = http

    async def answer(self, request: Request) -> Response:
        """In the form that the client accepts: Prometheus' text, or OpenMetrics."""
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        figures = CollectorRegistry()
        figures.register(PluginFigures(await self._readings()))
        if self._http is not None:
            figures.register(HttpRequests(self._http))
        parts = [figures] if self._recorder is None else [self._recorder.registry, figures]
        bodies = [encode(part) for part in parts]
        end = b"# EOF\n"  # of OpenMetrics, once
        body = b"".join(each.removesuffix(end) for each in bodies)
        return Response(body + (end if bodies[0].endswith(end) else b""), media_type=kind)

    async def _readings(self) -> Mapping[str, Sequence[MetricReading]]:
        """Of all processes that answer; of a dead or busy engine those of this one."""
        ask = getattr(self._engine, "plugin_metrics", None)
        if ask is not None:
            with suppress(EngineDeadError, asyncio.TimeoutError):
                found: Mapping[str, Sequence[MetricReading]]
                found = await asyncio.wait_for(ask(), _PATIENCE)
                return found
        return {"front": self._engine.board.metrics.readings()}
