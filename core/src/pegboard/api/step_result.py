"""What a step gives back. Part of `pegboard.api.step`."""

from __future__ import annotations

import msgspec

from pegboard.api.transfer import TransferReport

__all__ = ["PromptLogprobs", "StepResult", "TokenLogprobs"]


class TokenLogprobs(msgspec.Struct):
    """Log-probabilities at one position: the chosen token first, then the likeliest ones in
    falling order.

    The chosen token comes again among the likeliest if it is one of them. Natural logarithms of
    the model's unmodified distribution; a token that the model excludes has -9999.0, so that every
    value can be written as JSON.
    """

    ids: list[int]
    logprobs: list[float]
    rank: int
    """Rank of the chosen token, 1 for the likeliest."""


class PromptLogprobs(msgspec.Struct):
    """Log-probabilities of the prompt tokens at positions ``first, first + 1, …``.

    A chunk from `start` on begins at ``start + 1``; its last row scores the first token of the
    next chunk. A chunk that is computed again after a preemption is reported again.
    """

    first: int
    entries: list[TokenLogprobs]


class StepResult(msgspec.Struct):
    """Host data only. `token_ids[i]` are the tokens sampled for `slots[i]`, the rows with
    `samples` in row order.

    A row that failed has no tokens (an empty list).
    """

    step_id: int
    slots: list[int]
    token_ids: list[list[int]]
    logprobs: dict[int, list[TokenLogprobs]] = msgspec.field(default_factory=dict)
    """By slot, one entry per sampled token, for requests that asked."""
    prompt_logprobs: dict[int, PromptLogprobs] = msgspec.field(default_factory=dict)
    failed: dict[int, str] = msgspec.field(default_factory=dict)
    """By slot, why this row could not be served; it ends alone."""
    transfers: TransferReport | None = None
    """What the connector's worker halves told, merged over ranks, if the plan had a part for
    them."""
