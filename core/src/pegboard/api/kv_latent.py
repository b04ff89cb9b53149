"""What layers with latent vectors cache. Part of `pegboard.api.kv`."""

from __future__ import annotations

from typing import ClassVar, Literal

import attrs

from pegboard.api.kv_sizes import ITEM_BYTES

__all__ = ["LatentSpec"]


@attrs.frozen
class LatentSpec:
    """Multi-head latent attention: one vector per token, from which all heads' keys and values are
    computed (the compressed part and the rotated part together)."""

    width: int
    dtype: str
    kind: Literal["latent"] = "latent"
    kv_heads: ClassVar[int] = 1
    value_head_size: ClassVar[int | None] = None
    grows: ClassVar[bool] = True

    @property
    def head_size(self) -> int:
        return self.width

    def with_dtype(self, dtype: str) -> LatentSpec:
        """The specification with ``"auto"`` replaced by `dtype`."""
        return attrs.evolve(self, dtype=dtype) if self.dtype == "auto" else self

    def on_rank(self, world: int) -> LatentSpec:
        """The same: every rank keeps the whole vector."""
        return self

    def token_bytes(self) -> int:
        """Bytes that one token takes in one slot."""
        return self.width * ITEM_BYTES[self.dtype]

    def page_bytes(self, block_size: int) -> int:
        return block_size * self.token_bytes()

    def axes(self) -> dict[str, int]:
        return {"dim": self.width}

    def blocks_for(self, tokens: int, block_size: int, budget: int | None = None) -> int:
        return -(-tokens // block_size)
