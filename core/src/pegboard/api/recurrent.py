"""Recurrent mixers: layers that carry a state instead of keys and values. Part of the surface
*attention*: a backend serves them if its descriptor has the kind ``recurrent`` and names the mixer.

A *mixer* is the recurrence that a layer computes, by an open name (`RecurrentSpec.mixer`); its
inputs are a class of their own. The core brings a plain kernel for ``gated-linear``, the oracle of
faster ones.

Where states lie (see `RecurrentSpec`): a step over the tokens `start` to `stop` of a request reads
one block and writes another, or the same one::

    block size 8, mode align        entry 0        entry 1        entry 2
    step over tokens  0 to 8        writes
    step over tokens  8 to 13       reads ───────► writes
    step over tokens 13 to 14                      reads, writes
    step over tokens 14 to 16                      reads, writes
    step over token  16                            reads ───────► writes

so the state after token 8 and that after token 16 stay as they are, for whoever begins alike. In
mode ``all`` one step may pass several borders, and stores the state at each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    import torch

__all__ = [
    "GATED_LINEAR",
    "STATE_BORDERS",
    "GatedLinearInputs",
    "GatedLinearLayer",
    "RecurrentStep",
]

GATED_LINEAR = "gated-linear"
"""Mixer: a short causal convolution, then a linear recurrence with a decay per head."""

STATE_BORDERS = "state_borders"
"""Feature of a backend that stores states inside a step, which mode ``all`` needs."""


@attrs.frozen(eq=False)
class RecurrentStep:
    """The rows of one step as a group of states sees them: R requests, T tokens in request order.

    A kernel must not read a state of a row without `has_state`, nor multiply it by zero: the bits
    there may be any, not-a-number included. It reads the states of all rows before it writes one.
    Host lists and tensors hold the same values.
    """

    query_lens: Sequence[int]
    """Tokens per row, at least 1."""
    has_state: Sequence[bool]
    """Per row: the request has computed tokens. Others start from zeros."""
    query_starts: torch.Tensor
    """int32 [R + 1]"""
    has_state_device: torch.Tensor
    """bool [R]"""
    reads: torch.Tensor
    """int64 [R]: block that holds the state before the row's first token; 0 without one."""
    writes: torch.Tensor
    """int64 [R]: block that the state after the row's last token goes to."""
    borders: Sequence[Sequence[int]]
    """Per row: after how many of its tokens the state is stored as well, in rising order; less
    than its tokens. Empty but in mode ``all``."""
    border_blocks: torch.Tensor
    """int64 [sum of the lengths of `borders`]: where these states go, row after row."""


@attrs.frozen(eq=False)
class GatedLinearLayer:
    """Constants of a layer of ``gated-linear``.

    Its states, by the names of `RecurrentSpec.states`: ``conv [width - 1, channels]``, the last
    inputs of the convolution, oldest first; ``memory [heads, key_size, value_size]``.
    """

    heads: int
    key_size: int
    value_size: int
    conv_width: int
    """Taps of the convolution, its own token included; at least 2."""

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys and values of all heads."""
        return self.heads * (2 * self.key_size + self.value_size)


@attrs.frozen(eq=False)
class GatedLinearInputs:
    """Inputs of ``gated-linear``; the result is ``[T, heads, value_size]`` in the dtype of `mixed`.

    With ``c_t = silu(sum_i conv_weight[:, i] * mixed_{t - width + 1 + i})``, cut into queries,
    keys and values of all heads, in this order, each head has

        S_t = exp(log_decay_t) S_{t-1} + k_t v_tᵀ        y_t = S_tᵀ q_t

    Source: Yang et al., "Gated Linear Attention Transformers with Hardware-Efficient Training",
    2024, with one decay per head as in Dao and Gu, "Transformers are SSMs", 2024.
    """

    mixed: torch.Tensor
    """[T, channels]: what the convolution reads."""
    log_decay: torch.Tensor
    """float32 [T, heads], at most 0."""
    conv_weight: torch.Tensor
    """[channels, width], the tap of the token itself last."""
