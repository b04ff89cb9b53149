"""What the sampler knows of the rows of one step.

A row is one line of a matrix of logits ``[R, vocab]``. Each feature is None where no row needs it,
so that a step pays only for what its requests asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import torch

from pegboard.nn.transit import send

if TYPE_CHECKING:
    from pegboard.sampling.processors import ProcessorRows

__all__ = ["Entries", "LogprobRows", "PenaltyRows", "RandomRows", "SamplingRows"]

Ints = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]


@attrs.frozen(eq=False)
class Entries:
    """Single places of the matrix: entry i is at ``(rows[i], ids[i])``.

    No place occurs twice with values.
    """

    rows: torch.Tensor
    """int64 [N]"""
    ids: torch.Tensor
    """int64 [N]"""
    lines: torch.Tensor
    """int64: the distinct rows that occur."""
    values: torch.Tensor | None = None
    """float32 [N]"""

    @classmethod
    def of(
        cls, rows: Sequence[int], ids: Sequence[torch.Tensor], values: Sequence[torch.Tensor] = ()
    ) -> Entries:
        """Join the entries of several rows; one tensor per row, on the device."""
        device = ids[0].device
        lengths = [len(part) for part in ids]
        lines, spread = send(device, np.array(rows, np.int64), np.repeat(rows, lengths))
        return cls(spread, torch.cat(list(ids)), lines, torch.cat(list(values)) if values else None)


@attrs.frozen(eq=False)
class PenaltyRows:
    """The P rows with penalties, what they have seen, and how strong the penalties are."""

    rows: torch.Tensor
    """int64 [P]"""
    seen: torch.Tensor
    """bool [P, vocab]: the token is in prompt or output."""
    counts: torch.Tensor
    """int32 [P, vocab]: occurrences in the output."""
    repetition: torch.Tensor
    """float32 [P]"""
    frequency: torch.Tensor
    """float32 [P]"""
    presence: torch.Tensor
    """float32 [P]"""


@attrs.frozen(eq=False)
class RandomRows:
    """The N rows that are drawn, not taken at the maximum."""

    rows: torch.Tensor
    """int64 [N]"""
    uniforms: torch.Tensor
    """float64 [N], each strictly between 0 and 1."""
    temperature: torch.Tensor
    """float64 [N], above 0"""
    min_p: torch.Tensor
    """float64 [N]"""
    top_k: torch.Tensor
    """int64 [N]"""
    top_p: torch.Tensor
    """float64 [N]"""
    uses_min_p: Flags
    """[N], on the host: which rows use the filter at all."""
    uses_top_k: Flags
    uses_top_p: Flags
    most: int
    """The largest `top_k` of rows that use it."""

    def __len__(self) -> int:
        return len(self.uses_min_p)

    def part(self, place: slice) -> RandomRows:
        """Some of the rows."""
        names = [field.name for field in attrs.fields(RandomRows) if field.name != "most"]
        return attrs.evolve(self, **{name: getattr(self, name)[place] for name in names})


@attrs.frozen(eq=False)
class LogprobRows:
    """The rows whose log-probabilities are wanted."""

    rows: tuple[int, ...]
    widths: tuple[int, ...]
    """Per row, how many of the likeliest tokens are wanted; -1 for the whole vocabulary."""


@attrs.frozen(eq=False, kw_only=True)
class SamplingRows:
    """Everything about the R rows of one step."""

    count: int
    greedy: bool = True
    """Some row is greedy."""
    allowed: Entries | None = None
    """The only tokens that rows with a list may take."""
    masks: tuple[tuple[int, torch.Tensor], ...] = ()
    """``(row, bool [vocab])``: allowed tokens by a grammar."""
    bias: Entries | None = None
    banned: Entries | None = None
    """End ids of rows that are still below their least length."""
    penalties: PenaltyRows | None = None
    processors: ProcessorRows | None = None
    random: RandomRows | None = None
    logprobs: LogprobRows | None = None

    @property
    def modified(self) -> bool:
        """Some stage changes logits."""
        stages = (self.allowed, self.bias, self.banned, self.penalties, self.processors)
        return bool(self.masks) or any(stage is not None for stage in stages)
