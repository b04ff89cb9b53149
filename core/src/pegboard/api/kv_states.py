"""What layers with a state cache. Part of `pegboard.api.kv`."""

from __future__ import annotations

from math import prod
from typing import ClassVar, Literal

import attrs

from pegboard.api.kv_sizes import ITEM_BYTES, blocks_touched
from pegboard.errors import UnsupportedError

__all__ = ["RecurrentSpec", "StateMode", "StateTensor"]

StateMode = Literal["none", "align", "all"]
"""Which recurrent states are kept, see `RecurrentSpec`."""


_STATE_ALIGNMENT = 64
"""Bytes that each state tensor of a page begins at a multiple of."""


@attrs.frozen
class StateTensor:
    """One tensor of a recurrent state, for one request."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def with_dtype(self, dtype: str) -> StateTensor:
        """The tensor with ``"auto"`` replaced by `dtype`."""
        return attrs.evolve(self, dtype=dtype) if self.dtype == "auto" else self

    def bytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


@attrs.frozen
class RecurrentSpec:
    """A state that summarises all earlier tokens.

    The state after t tokens lies in entry ``(t - 1) // block_size`` of the block table, so a step
    over tokens `start` to `stop` reads entry ``(start - 1) // block_size`` (nothing if `start` is
    0) and writes entry ``(stop - 1) // block_size``; once a later entry is written, an earlier one
    never changes again. `cache` says which states are kept for prefix hits:

    * ``"none"``: none. One block per request, and requests of the model have no prefix hits.
    * ``"align"``: those at the end of a step that ends at a block border; long chunks are cut so
      that they do. Entries that a step passes over hold the null block.
    * ``"all"``: the kernel also writes the state at every border that it passes to its entry.
    """

    states: tuple[StateTensor, ...]
    cache: StateMode = attrs.field(
        default="align", validator=attrs.validators.in_(("none", "align", "all"))
    )
    mixer: str = attrs.field(default="gated-linear", kw_only=True)
    """Name of the recurrence that the layers compute, which a backend must know; see
    `pegboard.api.recurrent`."""
    kind: Literal["recurrent"] = "recurrent"
    kv_heads: ClassVar[int] = 0
    head_size: ClassVar[int] = 0
    """States have no heads."""
    value_head_size: ClassVar[int | None] = None
    grows: ClassVar[bool] = False

    @property
    def dtype(self) -> str:
        """Of the first state tensor."""
        return self.states[0].dtype

    def on_rank(self, world: int) -> RecurrentSpec:
        """Refused: states are not divided."""
        raise UnsupportedError(f"recurrent states are not divided among {world} ranks")

    def with_dtype(self, dtype: str) -> RecurrentSpec:
        """The specification with ``"auto"`` replaced by `dtype` in every state tensor."""
        return attrs.evolve(self, states=tuple(state.with_dtype(dtype) for state in self.states))

    def offsets(self) -> dict[str, int]:
        """Where in a page each tensor begins, in bytes."""
        offsets, end = {}, 0
        for state in self.states:
            offsets[state.name] = end
            end += -(-state.bytes() // _STATE_ALIGNMENT) * _STATE_ALIGNMENT
        return offsets

    def page_bytes(self, block_size: int) -> int:
        """Bytes of one state, whatever the block size."""
        return sum(-(-s.bytes() // _STATE_ALIGNMENT) * _STATE_ALIGNMENT for s in self.states)

    def axes(self) -> dict[str, int]:
        """None: states have shapes of their own."""
        return {}

    def blocks_for(self, tokens: int, block_size: int, budget: int | None = None) -> int:
        """The state that a step reads and those that it writes."""
        whole = -(-tokens // block_size)
        if self.cache == "all" and budget is None:
            return whole
        if self.cache == "all":
            assert budget is not None
            return min(whole, blocks_touched(budget + 1, block_size))
        return min(whole, 2)
