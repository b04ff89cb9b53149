"""OpenAI-compatible HTTP server for Pegboard."""

from __future__ import annotations

from pegboard.api.command import Command
from pegboard.api.endpoint import Endpoint
from pegboard.api.hooks import hookimpl

PEGBOARD_API = {"command": 0, "endpoint": 0}


@hookimpl
def pegboard_endpoints() -> tuple[Endpoint, ...]:
    """The server's own routes, in groups."""
    return (
        Endpoint(name="openai", routes="pegboard_server_openai.openai_routes:routes"),
        Endpoint(name="responses", routes="pegboard_server_openai.responses_routes:routes"),
        Endpoint(name="messages", routes="pegboard_server_openai.messages_routes:routes"),
        Endpoint(name="tokenize", routes="pegboard_server_openai.tokenize_routes:routes"),
        Endpoint(name="admin", routes="pegboard_server_openai.admin_routes:routes"),
        Endpoint(name="dev", routes="pegboard_server_openai.dev_routes:routes"),
    )


@hookimpl
def pegboard_commands() -> tuple[Command, ...]:
    """``pegboard serve``."""
    return (
        Command(
            name="serve",
            help="Serve a model over HTTP, as OpenAI's API",
            app="pegboard_server_openai.serve:app",
        ),
    )
