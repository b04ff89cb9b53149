"""Routes under ``/v1/messages``."""

from __future__ import annotations

from collections.abc import Iterable

from pegboard.api.endpoint import EndpointContext, Route
from pegboard_server_openai.messages import Messages
from pegboard_server_openai.messages_bodies import CountTokensRequest, MessagesRequest

__all__ = ["routes"]


def routes(ctx: EndpointContext) -> Iterable[Route]:
    """Answers to conversations, and their length."""
    own = Messages(ctx.server)
    path = "/v1/messages"
    return (
        Route(
            "POST", path, own.create, "Answer a conversation (Anthropic's)", body=MessagesRequest
        ),
        Route(
            "POST",
            f"{path}/count_tokens",
            own.count,
            "Count the tokens of a conversation",
            body=CountTokensRequest,
        ),
    )
