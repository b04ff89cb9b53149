"""Conformance kit for the surface *endpoint*: routes of the HTTP server.

A test file of an endpoint subclasses `EndpointKit`, names the descriptor, and gives an engine that
stands in for the running one::

    class TestMyEndpoint(EndpointKit):
        endpoint = MY_ENDPOINT

        def context(self):
            return EndpointContext(engine=SimpleNamespace(max_model_len=64), server=None)

The routes are made as a server makes them. No server runs, so what they answer is the plugin's own
to test.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Collection
from types import SimpleNamespace

import attrs
import pytest

from pegboard.api.endpoint import Endpoint, EndpointContext, Route
from pegboard.testing.boards import board_with
from pegboard_testkit.own_settings import OwnSettings

__all__ = ["EndpointKit"]

_PART = re.compile(r"[\w.~-]+|\{[a-z_]\w*(:path)?\}")


class EndpointKit(OwnSettings):
    """Tests of an endpoint; subclass it in a test file under a name that begins with ``Test``."""

    endpoint: Endpoint
    """The descriptor."""
    public: Collection[str] = ()
    """Paths that are meant to be answered without an API key."""

    def context(self) -> EndpointContext:
        """What the routes are made from: an engine and a server that know nothing, unless this is
        given. Without settings of its own it gets those of the plugin."""
        return EndpointContext(engine=SimpleNamespace(), server=SimpleNamespace())

    def test_it_is_on_the_board(self) -> None:
        name = self.endpoint.name
        assert board_with("endpoint", self.endpoint).registry("endpoint").get(name) == self.endpoint

    def test_there_are_routes_and_each_is_there_once(self) -> None:
        keys = Counter((route.method, route.path) for route in self._routes())
        assert keys, "there is no route"
        twice = [key for key, count in keys.items() if count > 1]
        assert not twice, f"more than once: {twice}"

    def test_the_same_routes_are_made_for_each_server(self) -> None:
        one, other = ([(r.method, r.path) for r in self._routes()] for _ in range(2))
        assert one == other, "making routes changes what is made next"

    def test_paths_have_parts_that_need_no_escape(self) -> None:
        for route in self._routes():
            parts = [part for part in route.path.split("/") if part]
            bad = [part for part in parts if not _PART.fullmatch(part)]
            assert not bad, f"{route.path}: {', '.join(bad)}"

    def test_handlers_are_functions_of_a_request(self) -> None:
        for route in self._routes():
            assert callable(route.handler), f"{_name(route)}: {route.handler!r} cannot be called"
            try:
                inspect.signature(route.handler).bind(object())
            except TypeError as error:
                pytest.fail(f"{_name(route)}: the handler does not take a request: {error}")

    def test_each_route_says_in_a_line_what_it_is_for(self) -> None:
        for route in self._routes():
            assert route.summary.strip() and "\n" not in route.summary, _name(route)

    def test_only_what_is_meant_to_be_is_public(self) -> None:
        found = {route.path for route in self._routes() if route.public}
        assert found == set(self.public), "say in `public` what needs no API key"

    def _routes(self) -> list[Route]:
        made = list(self.endpoint.routes.load()(self._handed_context()))
        assert all(isinstance(route, Route) for route in made), f"not only routes: {made}"
        return made

    def _handed_context(self) -> EndpointContext:
        """`context`, with the plugin's settings and metrics where it says nothing of settings."""
        context = self.context()
        if context.settings is not None:
            return context
        return attrs.evolve(context, **self.handed("endpoint", self.endpoint.name))


def _name(route: Route) -> str:
    return f"{route.method} {route.path}"
