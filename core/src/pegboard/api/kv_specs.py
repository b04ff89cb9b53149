"""What one slot keeps of a request, by kind. Part of `pegboard.api.kv`, which exports it.

A family declares one of these per slot; groups, block sizes, sizing, prefix hits and freeing follow
from it. `blocks_for` bounds what a request holds at any one time, `budget` being the most tokens of
one step; blocks that left a window are given back after each step.
"""

from __future__ import annotations

from math import prod
from typing import ClassVar, Literal, TypeVar

import attrs

from pegboard.errors import ConfigError, PluginError, UnsupportedError

__all__ = [
    "ITEM_BYTES",
    "ChunkedLocalSpec",
    "CrossAttentionSpec",
    "EncoderOnlySpec",
    "FullAttentionSpec",
    "KVSpec",
    "LatentSpec",
    "RecurrentSpec",
    "SlidingWindowSpec",
    "StateMode",
    "StateTensor",
    "kv_heads_on_rank",
]

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}
"""Bytes per element of the dtypes that a cache may have, by torch name."""

StateMode = Literal["none", "align", "all"]
"""Which recurrent states are kept, see `RecurrentSpec`."""

_STATE_ALIGNMENT = 64
"""Bytes that each state tensor of a page begins at a multiple of."""


_S = TypeVar("_S", bound="_Attention")


def _blocks_touched(tokens: int, block_size: int) -> int:
    """Most blocks that `tokens` tokens in a row lie in, wherever they begin."""
    return 0 if tokens <= 0 else (tokens + block_size - 2) // block_size + 1


def kv_heads_on_rank(kv_heads: int, world: int) -> int:
    """Key and value heads that each of `world` ranks holds; with fewer heads than ranks, several
    ranks hold the same one. Raises `ConfigError` if neither number divides the other."""
    if kv_heads % world and world % kv_heads:
        raise ConfigError(
            f"{kv_heads} key and value heads cannot be divided among {world} ranks; "
            "tensor_parallel_size must divide them, or be a multiple of them"
        )
    return max(kv_heads // world, 1)


def _positive(spec: object, field: attrs.Attribute[int], value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        name = f"{type(spec).__name__}.{field.name}"
        raise PluginError(f"{name}={value!r} is not allowed: at least 1, an integer")


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

    window: int = attrs.field(kw_only=True, validator=_positive)
    kind: Literal["sliding"] = "sliding"
    grows: ClassVar[bool] = False

    def blocks_for(self, tokens: int, block_size: int, budget: int | None = None) -> int:
        whole = -(-tokens // block_size)
        if budget is None:
            return whole
        return min(whole, _blocks_touched(self.window - 1 + budget, block_size))


@attrs.frozen
class ChunkedLocalSpec(_Attention):
    """Each token attends to itself and the earlier tokens of its chunk; chunk i is tokens
    ``i * chunk`` and on."""

    chunk: int = attrs.field(kw_only=True, validator=_positive)
    kind: Literal["chunked"] = "chunked"
    grows: ClassVar[bool] = False

    def blocks_for(self, tokens: int, block_size: int, budget: int | None = None) -> int:
        whole = -(-tokens // block_size)
        if budget is None:
            return whole
        return min(whole, _blocks_touched(self.chunk - 1 + budget, block_size))


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


@attrs.frozen
class CrossAttentionSpec(_Attention):
    """Keys and values of the encoder's tokens, written once, read by every step."""

    max_tokens: int = attrs.field(kw_only=True, validator=_positive)
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
            return min(whole, _blocks_touched(budget + 1, block_size))
        return min(whole, 2)


KVSpec = (
    FullAttentionSpec
    | SlidingWindowSpec
    | ChunkedLocalSpec
    | LatentSpec
    | RecurrentSpec
    | CrossAttentionSpec
    | EncoderOnlySpec
)
"""Union of all specifications."""
