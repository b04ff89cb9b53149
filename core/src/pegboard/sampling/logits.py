"""The stages that change logits, in the order that `SamplingParams` documents.

All of them work in place on float32 ``[R, vocab]`` and touch only the rows that asked; what a row
gets never depends on the other rows. An excluded token has the logit -inf, and no later stage
brings it back. A number is never assigned by index: on a GPU torch would wait for its copy.
"""

from __future__ import annotations

import torch

from pegboard.sampling.rows import Entries, PenaltyRows, SamplingRows

__all__ = ["process_logits"]

EXCLUDED = float("-inf")


def process_logits(logits: torch.Tensor, rows: SamplingRows) -> dict[int, str]:
    """Allowed ids and grammar masks, bias, banned end ids, penalties, logits processors; `logits`
    is overwritten. By row, why a processor cannot serve it."""
    if rows.allowed is not None:
        _keep_only(logits, rows.allowed)
    for row, allowed in rows.masks:
        logits[row].masked_fill_(~allowed, EXCLUDED)
    if rows.bias is not None:
        _add(logits, rows.bias)
    if rows.banned is not None:
        logits.index_put_((rows.banned.rows, rows.banned.ids), logits.new_full((), EXCLUDED))
    if rows.penalties is not None:
        _penalise(logits, rows.penalties)
    return {} if rows.processors is None else rows.processors.apply(logits)


def _keep_only(logits: torch.Tensor, allowed: Entries) -> None:
    kept = logits[allowed.rows, allowed.ids]
    logits.index_fill_(0, allowed.lines, EXCLUDED)
    logits[allowed.rows, allowed.ids] = kept


def _add(logits: torch.Tensor, bias: Entries) -> None:
    assert bias.values is not None
    logits[bias.rows, bias.ids] += bias.values


def _penalise(logits: torch.Tensor, penalties: PenaltyRows) -> None:
    """Repetition over prompt and output, then frequency and presence over the output.

    Repetition penalty as in Keskar et al., "CTRL" (2019), section 4.1, with negative logits
    multiplied; frequency and presence are subtracted.
    """
    values = logits[penalties.rows]
    strength = penalties.repetition[:, None]
    weakened = torch.where(values > 0, values / strength, values * strength)
    values = torch.where(penalties.seen, weakened, values)
    values -= penalties.frequency[:, None] * penalties.counts
    values -= penalties.presence[:, None] * (penalties.counts > 0)
    logits[penalties.rows] = values
