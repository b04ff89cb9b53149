"""From logits to token ids: greedy and random rows in one batch."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np
import torch

from pegboard.nn.transit import column, to_host
from pegboard.sampling.draw import draw
from pegboard.sampling.logits import process_logits
from pegboard.sampling.logprobs import LogprobBatch, raw_logprobs, take_logprobs
from pegboard.sampling.rows import SamplingRows

__all__ = ["FAULTS", "Sampled", "sample"]

FAULTS = {
    1: "the model's logits are not finite numbers",
    2: "no token is left to choose: allowed_token_ids, a grammar, min_tokens or a logits processor "
    "exclude all",
    3: "logits are not finite numbers after logit_bias, penalties and logits processors",
}
"""Why a row failed, by its status; 0 is good."""


@attrs.frozen(eq=False)
class Sampled:
    """What was chosen for R rows, still on the device."""

    ids: torch.Tensor
    """int64 [R], always inside the vocabulary; without meaning where the status is not 0."""
    status: torch.Tensor
    """int8 [R]: 0, or a key of `FAULTS`. A fault of one row leaves the others alone."""
    logprobs: LogprobBatch | None = None
    """For the rows that asked."""
    logprob_rows: tuple[int, ...] = ()
    """Which rows those are."""
    faults: Mapping[int, str] = attrs.field(factory=dict)
    """By row, why a logits processor could not serve it."""

    def fetched(self) -> Sampled:
        """Copies on the host, see `to_host`."""
        logprobs = None if self.logprobs is None else self.logprobs.fetched()
        return attrs.evolve(
            self, ids=to_host(self.ids), status=to_host(self.status), logprobs=logprobs
        )


def sample(logits: torch.Tensor, rows: SamplingRows) -> Sampled:
    """Choose a token per row of ``logits [R, vocab]``, which may be overwritten.

    Greedy rows take the likeliest token, the lowest id among equals; others are drawn
    (`pegboard.sampling.draw`).
    """
    logits = logits.float()
    status = (~logits.amax(-1).isfinite()).to(torch.int8)
    wanted = rows.logprobs
    if wanted is None:
        ids, status, faults = _choose_checked(logits, rows, status)
        return Sampled(ids, status, faults=faults)
    places = column(wanted.rows, np.int64, logits.device)
    raw = raw_logprobs(logits[places])
    ids, status, faults = _choose_checked(logits, rows, status)
    scored = take_logprobs(raw, ids[places], wanted.widths)
    return Sampled(ids, status, scored, wanted.rows, faults)


def _choose_checked(
    logits: torch.Tensor, rows: SamplingRows, status: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, dict[int, str]]:
    """Process and choose; rows that processing left without a token get a status."""
    faults: dict[int, str] = {}
    if rows.modified:
        faults = process_logits(logits, rows)
        status = torch.where(status == 0, _status_after(logits), status)
    return _choose(logits, rows), status, faults


def _status_after(logits: torch.Tensor) -> torch.Tensor:
    peak = logits.amax(-1)
    fault = torch.where(peak == float("-inf"), 2, 3)
    return torch.where(peak.isfinite(), 0, fault).to(torch.int8)


def _choose(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    if rows.random is None:
        return logits.argmax(-1)
    if not rows.greedy:
        return draw(logits, rows.random)
    ids = logits.argmax(-1)
    ids[rows.random.rows] = draw(logits, rows.random)
    return ids
