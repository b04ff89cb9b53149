"""What layers of attention cache. Part of `pegboard.api.kv`."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeVar

import attrs

from pegboard.api.kv_sizes import ITEM_BYTES, blocks_touched, kv_heads_on_rank, positive

__all__ = [
    "ChunkedLocalSpec",
    "CrossAttentionSpec",
    "EncoderOnlySpec",
    "FullAttentionSpec",
    "SlidingWindowSpec",
]

_S = TypeVar("_S", bound="_Attention")


@attrs.frozen
class _Attention:
    """Keys and values per token and head."""

    kv_heads: int
    head_size: int
    dtype: str
    value_head_size: int | None = None
    """None: as `head_size`."""

    grows: ClassVar[bool] = True
    """Blocks held grow with the length of the request, without bound."""

    def with_dtype(self: _S, dtype: str) -> _S:
        """The specification with ``"auto"`` replaced by `dtype`."""
        return attrs.evolve(self, dtype=dtype) if self.dtype == "auto" else self

    def on_rank(self: _S, world: int) -> _S:
        """What one of `world` ranks keeps. Raises `ConfigError` if heads cannot be divided."""
        return attrs.evolve(self, kv_heads=kv_heads_on_rank(self.kv_heads, world))

    def token_bytes(self) -> int:
        """Bytes that one token takes in one slot."""
        width = self.head_size + (self.value_head_size or self.head_size)
        return self.kv_heads * width * ITEM_BYTES[self.dtype]

    def page_bytes(self, block_size: int) -> int:
        """Bytes of one block of `block_size` tokens in one slot."""
        return block_size * self.token_bytes()

    def axes(self) -> dict[str, int]:
        """Sizes of the axes of a layout beside blocks and tokens."""
        return {"kv": 2, "head": self.kv_heads, "dim": self.head_size}

    def blocks_for(self, tokens: int, block_size: int, budget: int | None = None) -> int:
        """Blocks that a request of `tokens` tokens holds at most."""
        return -(-tokens // block_size)


@attrs.frozen
class FullAttentionSpec(_Attention):
    """Keys and values of every earlier token are kept."""

    kind: Literal["full"] = "full"


@attrs.frozen
class SlidingWindowSpec(_Attention):
    """Each token attends to itself and the ``window - 1`` tokens before it."""

    window: int = attrs.field(kw_only=True, validator=positive)
    kind: Literal["sliding"] = "sliding"
    grows: ClassVar[bool] = False

    def blocks_for(self, tokens: int, block_size: int, budget: int | None = None) -> int:
        whole = -(-tokens // block_size)
        if budget is None:
            return whole
        return min(whole, blocks_touched(self.window - 1 + budget, block_size))


@attrs.frozen
class ChunkedLocalSpec(_Attention):
    """Each token attends to itself and the earlier tokens of its chunk; chunk i is tokens
    ``i * chunk`` and on."""

    chunk: int = attrs.field(kw_only=True, validator=positive)
    kind: Literal["chunked"] = "chunked"
    grows: ClassVar[bool] = False

    def blocks_for(self, tokens: int, block_size: int, budget: int | None = None) -> int:
        whole = -(-tokens // block_size)
        if budget is None:
            return whole
        return min(whole, blocks_touched(self.chunk - 1 + budget, block_size))


@attrs.frozen
class CrossAttentionSpec(_Attention):
    """Keys and values of the encoder's tokens, written once, read by every step."""

    max_tokens: int = attrs.field(kw_only=True, validator=positive)
    """Most encoder tokens of a request."""
    kind: Literal["cross"] = "cross"
    grows: ClassVar[bool] = False

    def blocks_for(self, tokens: int, block_size: int, budget: int | None = None) -> int:
        return -(-self.max_tokens // block_size)


@attrs.frozen
class EncoderOnlySpec(_Attention):
    """Attention within one step, in both directions: nothing is kept, and no block is held."""

    kind: Literal["encoder-only"] = "encoder-only"
    grows: ClassVar[bool] = False

    def page_bytes(self, block_size: int) -> int:
        return 0

    def blocks_for(self, tokens: int, block_size: int, budget: int | None = None) -> int:
        return 0
