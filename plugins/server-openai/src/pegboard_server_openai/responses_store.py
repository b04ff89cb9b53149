"""Responses that are kept for later, in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import attrs
import msgspec

__all__ = ["MAX_RESPONSES", "MAX_STORED_BYTES", "ResponseStore"]

MAX_RESPONSES = 1000
MAX_STORED_BYTES = 256 << 20
_DECODE = msgspec.json.Decoder(list[dict[str, Any]]).decode


@attrs.frozen
class _Kept:
    response: bytes
    conversation: bytes
    items: bytes

    @property
    def size(self) -> int:
        return len(self.response) + len(self.conversation) + len(self.items)


@attrs.define
class ResponseStore:
    """Keeps the responses that were used last, up to a number and a size in bytes (of their JSON).

    A response that is larger than all may be is not kept.
    """

    max_responses: int = MAX_RESPONSES
    max_bytes: int = MAX_STORED_BYTES
    size: int = attrs.field(default=0, init=False)
    """Bytes that are kept now."""
    _kept: OrderedDict[str, _Kept] = attrs.field(factory=OrderedDict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self._kept)

    def put(
        self,
        response_id: str,
        response: Any,
        conversation: list[dict[str, Any]],
        items: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Keep a response, the messages up to its own, and the items of its input."""
        encode = msgspec.json.encode
        kept = _Kept(encode(response), encode(conversation), encode(items))
        self._kept[response_id] = kept
        self.size += kept.size
        while len(self._kept) > self.max_responses or self.size > self.max_bytes:
            self.size -= self._kept.popitem(last=False)[1].size

    def response(self, response_id: str) -> bytes | None:
        """The JSON of a response, or None."""
        kept = self._used(response_id)
        return None if kept is None else kept.response

    def conversation(self, response_id: str) -> list[dict[str, Any]] | None:
        """Its messages, fresh ones, or None."""
        kept = self._used(response_id)
        return None if kept is None else _DECODE(kept.conversation)

    def items(self, response_id: str) -> list[dict[str, Any]] | None:
        """The items of its input, or None."""
        kept = self._used(response_id)
        return None if kept is None else _DECODE(kept.items)

    def remove(self, response_id: str) -> bool:
        """Forget one; False if there is none."""
        kept = self._kept.pop(response_id, None)
        if kept is not None:
            self.size -= kept.size
        return kept is not None

    def _used(self, response_id: str) -> _Kept | None:
        kept = self._kept.get(response_id)
        if kept is not None:
            self._kept.move_to_end(response_id)
        return kept
