"""What a kernel is given: constants of a layer, the rows of a step, the inputs of a call.

Which of them belongs to which kind of group stands in `pegboard.api.attention`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    import torch

__all__ = ["AttentionInputs", "AttentionLayer", "AttentionStep", "CrossInputs", "LatentInputs"]


@attrs.frozen(eq=False)
class AttentionLayer:
    """Constants of one layer. Tensors are on the device; a weight update writes into them."""

    heads: int
    kv_heads: int
    head_size: int
    scale: float
    """Multiplies the scores."""
    soft_cap: float | None = None
    """Scaled scores s become ``soft_cap * tanh(s / soft_cap)`` before they are masked. Only layers
    of models that declare the feature ``soft_cap`` have one."""
    sinks: torch.Tensor | None = None
    """``[heads]``: a score per head that takes part in every softmax and has no value. Only layers
    of models that declare the feature ``sinks`` have them."""
    k_scale: torch.Tensor | None = None
    """float32 ``[]``: what the keys in a cache of 8-bit floats are multiples of. A cache of another
    dtype holds keys as they are, whatever stands here. None: 1."""
    v_scale: torch.Tensor | None = None
    """The same of values."""


@attrs.frozen(eq=False)
class AttentionStep:
    """The rows of one step as one group sees them: R requests, T query tokens in request order.

    Row r has ``query_lens[r]`` query tokens, the last of ``kv_lens[r]`` tokens known after this
    step; its tokens lie in
    ``block_table[r, : ceil(kv_lens[r] / block_size)]``. Host lists and tensors hold the same
    values.

    In a group of cross-attention, `kv_lens` counts the encoder's tokens, of which every query sees
    all, and `slots` are the places of the encoder's tokens of those rows whose request begins in
    this step, row after row: the others stored theirs already.

    A step that is `captured` is recorded into a device graph and replayed with other values in
    the same tensors, so nothing may follow from host values but shapes: `query_lens` are all 1,
    `kv_lens` the largest values that a replay can have, `block_lists` is empty, and `plan` runs
    device work only. Rows without a request have a length of 0 in `kv_lens_device` and -1 in
    `slots`; their result is never read. Only backends that declare ``capture="whole"`` meet one.

    Of a group whose kind gives up old tokens (sliding, chunked) only the entries count that some
    query token of the step attends to. What stands in earlier ones is the null block or the id of
    a block that belongs to another request by now: it must not be read.
    """

    query_lens: Sequence[int]
    kv_lens: Sequence[int]
    block_lists: Sequence[Sequence[int]]
    """Block ids per row."""
    query_starts: torch.Tensor
    """int32 [R + 1]"""
    kv_lens_device: torch.Tensor
    """int32 [R]"""
    block_table: torch.Tensor
    """int32 [R, most blocks of a row]; unused places hold 0, the null block."""
    slots: torch.Tensor
    """int64 [T]: ``block id * block size + offset`` where each query token's key and value are
    stored; -1 for nowhere."""
    captured: bool = False
    common_prefix: int = 0
    """Leading tokens that all rows have in the same blocks, none of them a query token: a multiple
    of the block size, and perhaps fewer than there are. Of a captured step, the most that a replay
    can have."""
    common_prefix_device: torch.Tensor | None = None
    """int32 [1], the same on the device; None where there is never any."""


@attrs.frozen(eq=False)
class AttentionInputs:
    """Full, sliding and chunked attention: ``query [T, heads, dim]``, ``key`` and ``value [T,
    kv_heads, dim]``."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


@attrs.frozen(eq=False)
class LatentInputs:
    """Latent attention with absorbed weights: scores are products of ``query [T, heads, width]``
    with ``latent [T, width]``, which is stored; the result is the weighted sum of latent vectors,
    ``[T, heads, width]``."""

    query: torch.Tensor
    latent: torch.Tensor


@attrs.frozen(eq=False)
class CrossInputs:
    """Cross-attention: ``query [T, heads, dim]``, and keys and values of the encoder's tokens that
    are to be stored, ``[tokens, kv_heads, dim]``; None in a step in which no request begins."""

    query: torch.Tensor
    key: torch.Tensor | None = None
    value: torch.Tensor | None = None
