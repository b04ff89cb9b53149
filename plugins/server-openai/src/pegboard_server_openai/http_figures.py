"""Counts of HTTP requests, under the names and labels that dashboards of other servers want: those
of prometheus-fastapi-instrumentator."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import attrs
from starlette._utils import get_route_path
from starlette.datastructures import Headers

__all__ = ["Figure", "HttpFigures", "HttpTally"]

_FINE = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5),
    *(10, 30, 60),
)
_COARSE = (0.1, 0.5, 1)
_UNCOUNTED = frozenset(("/health", "/load", "/metrics", "/ping", "/server_info", "/version"))
"""What is asked by machines all the time."""
_METHODS = frozenset(("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"))
_ABOUT = {
    "http_requests": "Requests by method, class of status and route.",
    "http_request_size_bytes": "Told lengths of requests, by route.",
    "http_response_size_bytes": "Told lengths of answers, by route; a stream tells none.",
    "http_request_duration_highr_seconds": "Seconds to the end of the answer, in many buckets.",
    "http_request_duration_seconds": "Seconds to the end of the answer, by method and route.",
}


@attrs.frozen
class Figure:
    """A metric, for whoever writes them down."""

    name: str
    kind: str
    """``counter``, ``summary`` or ``histogram``."""
    about: str
    labels: tuple[str, ...]
    rows: Sequence[tuple[tuple[str, ...], float, Sequence[tuple[str, float]]]]
    """Values of the labels; the count of a counter, the sum of the others; of a histogram what is
    at most each bound, of a summary one pair, ``("count", n)``."""


class _Histogram:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def pairs(self) -> list[tuple[str, float]]:
        names = [*(repr(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))


@attrs.define
class HttpTally:
    """What was counted since the start. Used in the server's event loop only."""

    _requests: dict[tuple[str, ...], int] = attrs.field(factory=dict, init=False)
    _sizes: dict[str, list[float]] = attrs.field(factory=dict, init=False)
    """By route: requests, bytes that they told, bytes that their answers told."""
    _fine: _Histogram = attrs.field(factory=lambda: _Histogram(_FINE), init=False)
    _coarse: dict[tuple[str, ...], _Histogram] = attrs.field(factory=dict, init=False)

    def add(
        self, method: str, status: int, handler: str, seconds: float, taken: int, given: int
    ) -> None:
        """Count an answered request; `taken` and `given` are bytes."""
        key = (method, f"{status // 100}xx", handler)
        self._requests[key] = self._requests.get(key, 0) + 1
        sizes = self._sizes.setdefault(handler, [0, 0, 0])
        sizes[0] += 1
        sizes[1] += taken
        sizes[2] += given
        self._fine.add(seconds)
        coarse = self._coarse.get((method, handler))
        if coarse is None:
            coarse = self._coarse[method, handler] = _Histogram(_COARSE)
        coarse.add(seconds)

    def figures(self) -> list[Figure]:
        """All of it, as it is now."""
        sizes = [((name,), row) for name, row in self._sizes.items()]
        return [
            _figure(
                "http_requests",
                "counter",
                ("method", "status", "handler"),
                [(key, float(count), ()) for key, count in self._requests.items()],
            ),
            *(
                _figure(
                    name,
                    "summary",
                    ("handler",),
                    [(key, row[place], (("count", row[0]),)) for key, row in sizes],
                )
                for place, name in ((1, "http_request_size_bytes"), (2, "http_response_size_bytes"))
            ),
            _figure(
                "http_request_duration_highr_seconds",
                "histogram",
                (),
                [((), self._fine.total, self._fine.pairs())],
            ),
            _figure(
                "http_request_duration_seconds",
                "histogram",
                ("method", "handler"),
                [(key, found.total, found.pairs()) for key, found in self._coarse.items()],
            ),
        ]


def _figure(name: str, kind: str, labels: tuple[str, ...], rows: Any) -> Figure:
    return Figure(name, kind, _ABOUT[name], labels, rows)


class HttpFigures:
    """Counts what passes through. Plain ASGI; streams send their tokens past it."""

    def __init__(self, app: Any, tally: HttpTally, paths: frozenset[str]) -> None:
        """`paths`: of the routes; a request for none of them is counted under ``none``."""
        self._app = app
        self._tally = tally
        self._paths = paths

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or get_route_path(scope) in _UNCOUNTED:
            await self._app(scope, receive, send)
            return
        begin = time.perf_counter()
        status, given = 500, 0

        async def seen(message: Any) -> None:
            nonlocal status, given
            if message["type"] == "http.response.start":
                status, given = message["status"], _length(Headers(raw=message["headers"]))
            await send(message)

        try:
            await self._app(scope, receive, seen)
        finally:
            method = scope["method"] if scope["method"] in _METHODS else "OTHER"
            seconds, taken = time.perf_counter() - begin, _length(Headers(scope=scope))
            self._tally.add(method, status, self._handler(scope), seconds, taken, given)

    def _handler(self, scope: Any) -> str:
        route = scope.get("route")
        path = getattr(route, "path", None) or get_route_path(scope)
        return path if path in self._paths else "none"


def _length(headers: Headers) -> int:
    told = headers.get("content-length", "")
    return int(told) if told.isdigit() and len(told) < 19 else 0
