"""The conformance kits of the plugin's surfaces."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pegboard.api.endpoint import EndpointContext
from pegboard.testing.boards import board_of
from pegboard_server_openai.state import ServerState
from pegboard_testkit.command_kit import CommandKit
from pegboard_testkit.endpoint_kit import EndpointKit

BOARD = board_of("server-openai")


def registered(surface: str, name: str) -> Any:
    return BOARD.require(surface, name, wanted_by="its tests")


class TestServe(CommandKit):
    command = registered("command", "serve")
    refused = (("no-such-model", "--port", "none"),)


class _Routes(EndpointKit):
    def context(self) -> EndpointContext:
        engine: Any = SimpleNamespace(max_model_len=64)
        return EndpointContext(engine, ServerState(engine, ("tiny",), ""))


class TestOpenai(_Routes):
    endpoint = registered("endpoint", "openai")


class TestTokenize(_Routes):
    endpoint = registered("endpoint", "tokenize")


class TestAdmin(_Routes):
    endpoint = registered("endpoint", "admin")
    public = ("/health", "/ping", "/version")
