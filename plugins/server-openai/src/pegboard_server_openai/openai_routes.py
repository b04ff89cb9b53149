"""Routes under ``/v1``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pegboard.api.endpoint import EndpointContext, Route
from pegboard_server_openai.bodies import ChatRequest, CompletionRequest
from pegboard_server_openai.chat import Chat
from pegboard_server_openai.completions import Completions
from pegboard_server_openai.faults import json_response
from pegboard_server_openai.state import ServerState

__all__ = ["routes"]


def routes(ctx: EndpointContext) -> Iterable[Route]:
    """Completions, chats and the list of models."""
    state: ServerState = ctx.server

    async def models(_: Request) -> Response:
        return json_response({"object": "list", "data": [_card(state, n) for n in state.names]})

    async def model(request: Request) -> Response:
        return json_response(_card(state, state.model_name(request.path_params["name"])))

    return (
        Route(
            "POST", "/v1/completions", Completions(state), "Complete a text", body=CompletionRequest
        ),
        Route(
            "POST", "/v1/chat/completions", Chat(state), "Answer a conversation", body=ChatRequest
        ),
        Route("GET", "/v1/models", models, "List the served names of the model"),
        Route("GET", "/v1/models/{name:path}", model, "Describe one served name"),
    )


def _card(state: ServerState, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "pegboard",
        "root": state.root or name,
        "parent": None,
        "max_model_len": state.engine.max_model_len,
    }
