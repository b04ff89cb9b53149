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

from typing import TYPE_CHECKING, Any

import attrs

from pegboard.api._parts import late_exports
from pegboard.api.descriptor import LazyRef, lazy_ref
from pegboard.errors import PluginError

if TYPE_CHECKING:
    from pegboard.api.logits_context import LogitsContext, LogitsRequest
    from pegboard.api.logits_rows import LogitsCall, LogitsRow, Rows

__all__ = ["LogitsCall", "LogitsContext", "LogitsProcessor", "LogitsRequest", "LogitsRow", "Rows"]

if not TYPE_CHECKING:
    __getattr__ = late_exports(__name__, __all__, "logits_context", "logits_rows")


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
