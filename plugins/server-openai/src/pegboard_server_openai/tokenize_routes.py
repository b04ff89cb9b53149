"""Text to token ids and back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response

from pegboard.api.endpoint import EndpointContext, Route
from pegboard_server_openai.bodies import DetokenizeRequest, TokenizeRequest
from pegboard_server_openai.chat import chat_prompt
from pegboard_server_openai.faults import HttpError, json_response
from pegboard_server_openai.reading import read_body
from pegboard_server_openai.state import ServerState

__all__ = ["routes"]

_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")
"""Special tokens that stand in ``/tokenizer_info`` by themselves too, as clients expect."""


def routes(ctx: EndpointContext) -> Iterable[Route]:
    """``/tokenize``, ``/detokenize`` and ``/tokenizer_info``."""
    own = _Tokenizing(ctx.server)
    return (
        Route("POST", "/tokenize", own.tokenize, "Token ids of a text", body=TokenizeRequest),
        Route("POST", "/detokenize", own.detokenize, "Text of token ids", body=DetokenizeRequest),
        Route("GET", "/tokenizer_info", own.info, "Facts of the tokeniser"),
    )


class _Tokenizing:
    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def tokenize(self, request: Request) -> Response:
        body = read_body(await request.body(), TokenizeRequest)
        self._state.model_name(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise HttpError(400, "give either prompt or messages", param="prompt")
        ids = await self._ids(body)
        tokenizer = self._state.engine.get_tokenizer()
        names = [tokenizer.id_to_token(i) for i in ids] if body.return_token_strs else None
        return json_response(
            {
                "count": len(ids),
                "max_model_len": self._state.engine.max_model_len,
                "tokens": ids,
                "token_strs": names,
            }
        )

    async def _ids(self, body: TokenizeRequest) -> list[int]:
        if body.prompt is None:
            prompt = await chat_prompt(self._state, body)
            return list(prompt.ids)
        return await self._state.engine.encode(
            body.prompt, add_special_tokens=body.add_special_tokens is not False
        )

    async def detokenize(self, request: Request) -> Response:
        body = read_body(await request.body(), DetokenizeRequest)
        self._state.model_name(body.model)
        tokenizer = self._state.engine.get_tokenizer()
        most = self._state.engine.max_model_len
        if len(body.tokens) > most:
            raise HttpError(
                400,
                f"tokens has {len(body.tokens)} ids, but the context holds {most} (max_model_len)",
                param="tokens",
            )
        for token in body.tokens:
            if not 0 <= token < tokenizer.vocab_size:
                raise HttpError(
                    400,
                    f"tokens names {token}, outside 0 to {tokenizer.vocab_size - 1}",
                    param="tokens",
                )
        text = await asyncio.to_thread(
            tokenizer.decode, body.tokens, bool(body.skip_special_tokens)
        )
        return json_response({"prompt": text})

    async def info(self, _: Request) -> Response:
        tokenizer = self._state.engine.get_tokenizer()
        return json_response(
            {
                "tokenizer_class": type(tokenizer).__name__,
                "vocab_size": tokenizer.vocab_size,
                "special_tokens": dict(tokenizer.special_tokens),
                **{name: tokenizer.special_tokens.get(name) for name in _NAMES},
                "special_ids": sorted(tokenizer.special_ids),
                "max_model_len": self._state.engine.max_model_len,
            }
        )
