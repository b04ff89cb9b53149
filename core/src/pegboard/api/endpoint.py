"""Surface *endpoint*: routes of the HTTP server.

Called by: a server plugin, in the front-end process, once, when the engine is ready and before the
first request is answered. The core has no HTTP server and imports no web framework: what a handler
is given is said by the server plugin (the one of this project gives a Starlette ``Request``, and
takes a Starlette ``Response`` too). Any server takes plain values, which become a JSON body.

A route that two plugins add, or that one adds twice, is an error that names both; the server then
does not start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from pegboard.api._parts import late_exports
from pegboard.api.descriptor import LazyRef, lazy_ref

if TYPE_CHECKING:
    from pegboard.api.endpoint_routes import METHODS, EndpointContext, Handler, Route

__all__ = ["METHODS", "Endpoint", "EndpointContext", "Handler", "Route"]

if not TYPE_CHECKING:
    __getattr__ = late_exports(__name__, __all__, "endpoint_routes")


@attrs.frozen
class Endpoint:
    """Descriptor of a group of routes."""

    name: str
    routes: LazyRef = attrs.field(converter=lazy_ref)
    """A callable ``(EndpointContext) -> Iterable[Route]``."""

    def claims(self) -> tuple[str, ...]:
        return ()
