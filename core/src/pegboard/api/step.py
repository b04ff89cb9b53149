"""The values that pass between scheduler and runner: a plan, late inputs, a result.

Plain host data, cheap to make and to serialise. A plan names requests by *slot*, the place of a
request's state on the device. The scheduler assigns slots; a slot is used again only after the
update of the last step that named it.

A request has tokens known (prompt and sampled) and tokens computed (those whose keys and values
are in the cache). A row of a plan says: compute `count` tokens from `start` on, and, if that
reaches the last known token, sample the next.
"""

from __future__ import annotations

import msgspec

from pegboard.api.params import SamplingParams
from pegboard.api.scores import PromptLogprobs, TokenLogprobs
from pegboard.api.step_result import StepResult
from pegboard.api.transfer import ConnectorStep

__all__ = [
    "BlockCopy",
    "LateInputs",
    "NewRow",
    "PromptLogprobs",
    "StepPlan",
    "StepResult",
    "TokenLogprobs",
]


class NewRow(msgspec.Struct):
    """Everything that the runner must know of a request when it gets a slot (first time or after a
    preemption)."""

    slot: int
    prompt_ids: list[int]
    output_ids: list[int]
    """Tokens sampled before a preemption."""
    params: SamplingParams
    seed: int
    child: int
    """Index among the n sequences of one request; part of the key of every random draw."""
    end_ids: list[int]
    """Ids that end the request (end of sequence and stop ids); masked before `min_tokens`."""
    blocks: list[list[int]]
    """Block ids per KV group for the tokens that are computed already (cache hits, forks)."""
    encoder_tokens: int = 0
    """Tokens of the encoder that cross-attention reads."""


class BlockCopy(msgspec.Struct):
    """Copy the first `tokens` tokens of block `source` to block `target`, before the step's
    forward pass."""

    group: int
    source: int
    target: int
    tokens: int


class StepPlan(msgspec.Struct):
    """One step. The columns `slots`, `starts`, `counts`, `samples`, `new_blocks` have one entry
    per row.

    A runner applies, in this order: `resync`, `freed_slots`, `new_rows`, `new_blocks`, `copies`,
    the forward pass. A slot may be freed and given to a new row by the same plan. Lists are the
    scheduler's: read only.
    """

    step_id: int
    slots: list[int]
    starts: list[int]
    """Tokens computed before this step."""
    counts: list[int]
    """Tokens to compute, at least 1."""
    samples: list[bool]
    """The row reaches its last known token, so a token is sampled."""
    new_blocks: list[list[list[int]]]
    """Per row and group, block ids to append to the row's block table."""
    new_rows: list[NewRow] = msgspec.field(default_factory=list)
    freed_slots: list[int] = msgspec.field(default_factory=list)
    """Slots that no later plan names (finished, aborted, preempted)."""
    resync: bool = False
    """The runner forgets all slots first; `new_rows` then holds every running request."""
    copies: list[BlockCopy] = msgspec.field(default_factory=list)
    common_prefix: list[int] = msgspec.field(default_factory=list)
    """Per group, leading blocks that all rows share, of tokens computed before this step; may be
    fewer than there are. Empty if there are none."""
    draft_counts: list[int] = msgspec.field(default_factory=list)
    """Per row, draft tokens among `counts`; empty without speculation."""
    dummy: bool = False
    """Run a forward pass without requests, so that other ranks can proceed."""
    connector: ConnectorStep | None = None
    """What the KV connector's worker halves do, after the copies and around the forward pass; the
    result brings their report. None without a connector."""

    @property
    def rows(self) -> int:
        return len(self.slots)

    @property
    def idle(self) -> bool:
        """Nothing is to be done: the plan may be dropped."""
        return not (self.slots or self.dummy or self.connector is not None)

    @property
    def tokens(self) -> int:
        """Query tokens of the step."""
        return sum(self.counts)


class LateInputs(msgspec.Struct):
    """What depended on the previous step's tokens and is ready only after the forward pass was
    started."""

    step_id: int
    masks: dict[int, bytes] = msgspec.field(default_factory=dict)
    """Slot → allowed-token bitmask, little-endian, one bit per token of the vocabulary."""
    token_ids: dict[int, list[int]] = msgspec.field(default_factory=dict)
    """Slot → tokens sampled since the row's last late inputs, of rows whose logits processors need
    them on the host."""
