"""What is refused before it is queued."""

from __future__ import annotations

from pegboard.api.views import EngineRequest
from pegboard.errors import RequestError, ResourceError
from pegboard.scheduler.books import Books
from pegboard.scheduler.request import Request

__all__ = ["check_request"]


def check_request(request: EngineRequest, books: Books, whole: int | None) -> None:
    """Raise for a request that can never be served, saying what could.

    `whole` is the budget of a step if prompts must run in one piece, else None.
    """
    name, prompt = request.request_id, len(request.prompt_ids)
    if name in books.requests:
        raise RequestError(
            f"request_id={name!r} is not allowed: a request with this id is live",
            field="request_id",
        )
    if not prompt:
        raise RequestError("prompt_ids=[] is not allowed: at least one token", field="prompt_ids")
    if whole is not None and prompt > whole:
        raise ResourceError(
            f"The prompt of request {name!r} has {prompt} tokens, but with "
            f"enable_chunked_prefill=False a step holds at most max_num_batched_tokens={whole}; "
            f"raise that, or enable chunks."
        )
    if request.encoder_tokens > books.kv.encoder_limit:
        raise RequestError(
            f"encoder_tokens={request.encoder_tokens} is not allowed: the model's cross-attention "
            f"reads at most {books.kv.encoder_limit}",
            field="encoder_tokens",
        )
    needed, room = Request.tokens_needed(request), books.kv.longest_request()
    if needed > room:
        most = room - prompt + 1
        remedy = f"lower max_tokens to at most {most}" if most > 0 else "shorten the prompt"
        raise ResourceError(
            f"Request {name!r} needs room for {needed} tokens (prompt of {prompt}, "
            f"max_tokens={request.max_tokens}), but the KV cache holds {room}; {remedy}, or "
            f"enlarge the cache."
        )
