"""What a step gives back. Part of `pegboard.api.step`."""

from __future__ import annotations

import msgspec

from pegboard.api.scores import PromptLogprobs, TokenLogprobs
from pegboard.api.transfer import TransferReport

__all__ = ["StepResult"]


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
