"""The tokeniser of a server, asked over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import httpx
import msgspec

from pegboard.errors import UnsupportedError
from pegboard_client.server import Server, checked, network_faults

__all__ = ["USUAL_IDS", "ServerTokens"]

USUAL_IDS = range(1000, 10000)
"""Ids of ordinary tokens in the vocabularies of nearly all models, for servers that do not tell."""


@attrs.frozen
class ServerTokens:
    """Routes ``/tokenizer_info``, ``/tokenize`` and ``/detokenize``."""

    server: Server
    client: httpx.AsyncClient
    model: str

    async def vocabulary(self) -> Sequence[int]:
        """All ids that are no special ones, or `USUAL_IDS`."""
        with network_faults(self.server):
            reply = await self.client.get("/tokenizer_info")
        try:
            told = msgspec.json.decode(reply.content)
            special = set(told["special_ids"])
            ids = [i for i in range(int(told["vocab_size"])) if i not in special]
        except (msgspec.DecodeError, LookupError, TypeError, ValueError):
            return USUAL_IDS
        return ids or USUAL_IDS

    async def count(self, text: str) -> int:
        """Without special tokens. Raises `UnsupportedError` where the server has no such route."""
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        told = await self._post("/tokenize", body, "to count the tokens of a data set")
        return int(told["count"])

    async def text(self, ids: Sequence[int]) -> str:
        """Of random ids; the same number of tokens need not come of it again."""
        body = {"model": self.model, "tokens": list(ids)}
        told = await self._post("/detokenize", body, "to make random texts for a chat")
        return str(told["prompt"])

    async def _post(self, path: str, body: dict[str, Any], purpose: str) -> dict[str, Any]:
        with network_faults(self.server):
            reply = await self.client.post(path, json=body)
        if reply.status_code in (404, 405):
            raise UnsupportedError(
                f"{self.server.base} has no route {path}, which is needed {purpose}; take "
                "--dataset-name random with --backend openai, or custom"
            )
        checked(self.server, reply.status_code, reply.content)
        told: dict[str, Any] = msgspec.json.decode(reply.content)
        return told
