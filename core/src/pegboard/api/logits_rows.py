"""A built logits processor and the rows that it serves. Part of `pegboard.api.logits`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs

if TYPE_CHECKING:
    import torch

    from pegboard.api.params import SamplingParams


__all__ = ["LogitsCall", "LogitsRow", "Rows"]


@attrs.frozen
class LogitsRow:
    """A request that begins to run, or runs again after it lost its place to others.

    Its slot is its own until `Rows.removed`: rows never move.
    """

    slot: int
    arguments: Mapping[str, Any]
    params: SamplingParams
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    """Tokens that it has already, of before a preemption. A row must not depend on whether it was
    preempted."""
    seed: int
    child: int
    """Index among the n sequences of one request."""
    end_ids: Sequence[int] = ()
    """Tokens that end it: the model's end of sequence unless the request ignores that, and its
    `stop_token_ids`."""


@attrs.frozen(eq=False)
class LogitsCall:
    """The N rows of a step that a processor serves, in any order and company."""

    logits: torch.Tensor
    """float32 [N, vocab]; it may be overwritten and returned."""
    slots: tuple[int, ...]
    lengths: tuple[int, ...]
    """Tokens of prompt and output that each row has."""
    output_ids: tuple[Sequence[int], ...] | None
    """Output of each row up to now; None unless `needs_host_ids`. Read only."""
    _table: torch.Tensor
    _lines: torch.Tensor

    def tokens(self) -> torch.Tensor:
        """Prompt and output of each row: int32 [N, longest] on the device, without meaning from the
        row's length on. A copy."""
        return self._table[self._lines, : max(self.lengths)]


class Rows(Protocol):
    """A built processor. Holds what it must know of each row, by slot."""

    def added(self, row: LogitsRow) -> None:
        """A request has a slot from now on."""
        ...

    def removed(self, slot: int) -> None:
        """The request of this slot is gone (finished, aborted, preempted), also one for which
        `added` raised."""
        ...

    def apply(self, call: LogitsCall) -> torch.Tensor:
        """The new logits, float32 [N, vocab] on the same device; what a row gets depends on that
        row alone. Must not wait for the device, and must not keep the tensors."""
        ...
