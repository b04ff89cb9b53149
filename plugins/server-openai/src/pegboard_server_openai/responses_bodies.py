"""Bodies of requests to ``/v1/responses``. Names and defaults are OpenAI's."""

from __future__ import annotations

from typing import Any

from pegboard_server_openai.asking import Extras, refuse
from pegboard_server_openai.faults import HttpError

__all__ = ["InputTokensRequest", "Question", "ResponsesRequest", "check_question", "check_request"]

LOGPROBS = "message.output_text.logprobs"
_INCLUDED = (
    LOGPROBS,
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
)
"""What may be asked for; all but the first are parts of what no answer here has."""
_NO_TOOLS = "no plugin for tool calls is installed"
_REASONS = {"tools": _NO_TOOLS, "conversation": "conversations are not kept"}
_REQUEST_REASONS = {
    "background": "an answer is made while its client waits",
    "context_management": "conversations are never shortened",
    "moderation": "there is no moderation",
    "prompt": "prompt templates are not kept",
}


class Question(Extras, kw_only=True):
    """What says how the prompt is made."""

    input: str | list[Any] | None = None
    """The user's text, or items: messages, calls of functions and what these answered, reasoning.
    """
    instructions: str | None = None
    """The first message, of the system."""
    previous_response_id: str | None = None
    """Goes on after a stored response."""
    reasoning: dict[str, Any] | None = None
    """Its ``effort`` is handed to the chat template."""
    text: dict[str, Any] | None = None
    """Format ``{"type": "text"}`` only; its ``verbosity`` is handed to the chat template."""
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    truncation: str | None = None
    """Only ``disabled``: prompts are never cut."""
    conversation: Any = None


class InputTokensRequest(Question, kw_only=True):
    """``POST /v1/responses/input_tokens``."""


class ResponsesRequest(Question, kw_only=True):
    """``POST /v1/responses``."""

    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    max_output_tokens: int | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    """Alternatives at each position, if `include` asks for log-probabilities."""
    stop: str | list[str] | None = None
    """An addition."""
    store: bool | None = None
    """Keep the response; as the server's operator has it, if left out."""
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    max_tool_calls: int | None = None
    background: bool | None = None
    context_management: Any = None
    moderation: Any = None
    prompt: Any = None

    @property
    def scored(self) -> bool:
        """Log-probabilities are asked for."""
        return LOGPROBS in (self.include or ())


def check_question(body: Question) -> None:
    """Raise `HttpError` 400 for what would change the answer and is not served."""
    refuse(body, _REASONS)
    if body.tool_choice not in (None, "none", "auto"):
        raise HttpError(400, "tool_choice is allowed only together with tools", param="tool_choice")
    if body.truncation not in (None, "disabled"):
        raise HttpError(
            400,
            f"truncation={body.truncation!r} is not supported: prompts are never cut; allowed is "
            "'disabled'",
            param="truncation",
        )
    _check_format((body.text or {}).get("format"))


def check_request(body: ResponsesRequest) -> None:
    """The same, and for values that are out of range."""
    check_question(body)
    refuse(body, _REQUEST_REASONS)
    if body.max_output_tokens is not None and body.max_output_tokens < 1:
        raise HttpError(
            400,
            f"max_output_tokens={body.max_output_tokens} is not allowed: at least 1",
            param="max_output_tokens",
        )
    for wanted in body.include or ():
        if wanted not in _INCLUDED:
            raise HttpError(
                400,
                f"include names {wanted!r}; allowed are {', '.join(_INCLUDED)}",
                param="include",
            )
    _check_metadata(body.metadata or {})


def _check_format(given: Any) -> None:
    kind = "text" if given is None else given.get("type") if isinstance(given, dict) else given
    if kind != "text":
        raise HttpError(
            400,
            f"text.format of type {kind!r} is not supported: no plugin for structured outputs is "
            "installed; allowed is 'text'",
            param="text",
        )


def _check_metadata(metadata: dict[str, str]) -> None:
    if len(metadata) > 16 or any(len(k) > 64 or len(v) > 512 for k, v in metadata.items()):
        raise HttpError(
            400,
            "metadata may have 16 entries, with keys of 64 and values of 512 characters",
            param="metadata",
        )
