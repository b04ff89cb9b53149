"""Routes, and what a plugin makes them from. Part of `pegboard.api.endpoint`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from pegboard.api.metrics import PluginMetrics
from pegboard.errors import PluginError

__all__ = ["METHODS", "EndpointContext", "Handler", "Route"]

METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")

Handler = Callable[[Any], Any]
"""``async (request) -> response`` runs in the server's event loop, which it must not block; a plain
``(request) -> response`` runs on a thread of the server's and may block. What is awaited (the body
of a request, the engine's methods) needs the first form. Errors of `pegboard.errors` become answers
with the status that fits; others are answered 500 and logged.
"""


@attrs.frozen
class Route:
    """One method of one path."""

    method: str = attrs.field()
    """One of `METHODS`; GET answers HEAD too."""
    path: str = attrs.field()
    """Begins with a slash; ``{name}`` is a part of the path that the handler reads."""
    handler: Handler
    summary: str = ""
    """One line for the server's description of itself."""
    public: bool = False
    """Answered without an API key. Only for what tells nothing of users or of the model."""
    body: type[Any] | None = None
    """The msgspec struct that the JSON body is read into, for the server's description."""

    @method.validator
    def _check_method(self, _: Any, value: str) -> None:
        if value not in METHODS:
            raise PluginError(f"route method {value!r} is not one of {', '.join(METHODS)}")

    @path.validator
    def _check_path(self, _: Any, value: str) -> None:
        if not value.startswith("/") or "//" in value or (value != "/" and value.endswith("/")):
            raise PluginError(
                f"route path {value!r} must begin with a slash, and have no empty part"
            )


@attrs.frozen
class EndpointContext:
    """What a plugin makes its routes from."""

    engine: Any
    """The running engine: a `pegboard.AsyncLLM`, or what serves in its place."""
    server: Any
    """What the server plugin shares with those that know it: names of the model, limits."""
    settings: Any = None
    """The plugin's own, see `pegboard.api.hooks.Hooks.pegboard_settings`."""
    metrics: PluginMetrics = attrs.field(factory=PluginMetrics, eq=False, repr=False)
    """The plugin's own namespace of metrics."""
