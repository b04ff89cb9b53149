"""Bodies of requests to ``/v1/messages``. Names and defaults are Anthropic's."""

from __future__ import annotations

from typing import Any

from pegboard_server_openai.asking import Extras, refuse
from pegboard_server_openai.faults import HttpError

__all__ = ["CountTokensRequest", "MessagesRequest", "check_messages", "effort_of"]

_REASONS = {
    "tools": "no plugin for tool calls is installed",
    "mcp_servers": "no plugin for tool calls is installed",
    "container": "nothing is run here",
    "context_management": "conversations are never shortened",
}


class CountTokensRequest(Extras, kw_only=True):
    """``POST /v1/messages/count_tokens``: what says how the prompt is made."""

    messages: list[Any]
    """Ends in a message of the user, or in the beginning of the answer."""
    system: str | list[Any] | None = None
    """A text, or blocks of text."""
    thinking: dict[str, Any] | None = None
    """Refused if it is ``enabled``: no thoughts are told apart."""
    output_config: dict[str, Any] | None = None
    """Its ``effort`` is handed to the chat template; a ``format`` is refused."""
    tools: list[Any] | None = None
    tool_choice: dict[str, Any] | None = None
    mcp_servers: list[Any] | None = None
    container: Any = None
    context_management: Any = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    """``POST /v1/messages``."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    metadata: dict[str, Any] | None = None
    """Taken and not used."""


def check_messages(body: CountTokensRequest) -> None:
    """Raise `HttpError` 400 for what would change the answer and is not served."""
    refuse(body, _REASONS)
    choice = (body.tool_choice or {}).get("type", "none")
    if choice not in ("none", "auto"):
        raise HttpError(400, "tool_choice is allowed only together with tools", param="tool_choice")
    if (body.thinking or {}).get("type") == "enabled":
        raise HttpError(
            400,
            "thinking of type 'enabled' is not supported: no plugin that tells thoughts apart is "
            "installed; leave it out",
            param="thinking",
        )
    if (body.output_config or {}).get("format"):
        raise HttpError(
            400,
            "output_config.format is not supported: no plugin for structured outputs is "
            "installed; leave it out",
            param="output_config",
        )


def effort_of(body: CountTokensRequest) -> Any:
    """What a template may know as ``reasoning_effort``."""
    return (body.output_config or {}).get("effort")
