"""Surface *logits*: what changes logits between the model and the choice of a token.

A request uses a processor that the engine option ``logits_processors`` names, or one of whose
`arguments` it gives in `SamplingParams.extra_args`. No other request pays for it.

Called by: the front end (`check`, when a request comes, before it is queued), and the sampler in
each process that holds a device, on the thread of the steps: `build` once, then per request
``added``, any number of ``apply``, ``removed``. With several ranks each does all of it, and all
must come to the same bits: no clocks, no draws but from the row's seed, child and length.

Stages of `SamplingParams` come first: allowed ids and masks, bias, banned end ids, penalties. Then
the processors: those of ``logits_processors`` in that order, the others by name. Then temperature,
filters and the draw. Reported log-probabilities are the model's own, before all of it.

May fail: what `added` or `apply` raises ends the requests served by the call, with the message, and
no others. A row in which no token is left (all -inf), or in which the largest logit is no finite
number, ends alone too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from pegboard.api.descriptor import LazyRef, lazy_ref
from pegboard.api.logits_context import LogitsContext, LogitsRequest
from pegboard.errors import PluginError

if TYPE_CHECKING:
    import torch

    from pegboard.api.params import SamplingParams

__all__ = ["LogitsCall", "LogitsContext", "LogitsProcessor", "LogitsRequest", "LogitsRow", "Rows"]


@attrs.frozen(kw_only=True)
class LogitsProcessor:
    """Descriptor of a logits processor."""

    name: str
    build: LazyRef = attrs.field(converter=lazy_ref)
    """A callable ``(LogitsContext) -> Rows``, for example the class."""
    arguments: tuple[str, ...] = attrs.field(default=())
    """Keys of ``extra_args`` that are this processor's; a key belongs to one processor."""
    check: LazyRef | None = attrs.field(default=None, converter=attrs.converters.optional(lazy_ref))
    """A callable ``(LogitsRequest) -> None`` that raises `RequestError` for what is not allowed.
    Runs where there are no tensors: it must not import torch. None: any values are taken."""
    argmax_invariant: bool = False
    """Never changes which logit of a row is the largest, nor which of equal ones: greedy requests
    are not shown to it, and keep the quick way."""
    needs_host_ids: bool = False
    """`LogitsCall.output_ids` is wanted. The tokens must come to the host first, so steps that
    overlap wait for each other at the sampling of these rows. Without it, `LogitsCall.tokens` has
    them on the device."""

    @arguments.validator
    def _check(self, _: Any, value: object) -> None:
        if not isinstance(value, tuple):
            raise PluginError(f"arguments={value!r} of {self.name!r} must be a tuple of texts")

    def claims(self) -> tuple[str, ...]:
        return self.arguments


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
