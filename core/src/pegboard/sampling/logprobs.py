"""Log-probabilities of the model's own distribution, before any sampling parameter touched it."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch

from pegboard.api.step import TokenLogprobs
from pegboard.nn.transit import to_host

__all__ = ["LOGPROB_FLOOR", "LogprobBatch", "raw_logprobs", "take_logprobs"]

LOGPROB_FLOOR = -9999.0
"""The least log-probability that is reported.

A token that the model excludes (-inf) shows as this, since JSON has no infinity.
"""


@attrs.frozen(eq=False)
class LogprobBatch:
    """Log-probabilities of N positions, still on the device."""

    ids: torch.Tensor
    """int64 [N, 1 + k]: the chosen token, then the k likeliest."""
    values: torch.Tensor
    """float32 [N, 1 + k], none below `LOGPROB_FLOOR`."""
    ranks: torch.Tensor
    """int64 [N]"""
    widths: tuple[int, ...]
    """Per row, how many of the k likeliest are wanted."""

    def fetched(self) -> LogprobBatch:
        """Copies on the host, see `pegboard.nn.transit.to_host`."""
        return attrs.evolve(
            self,
            ids=to_host(self.ids),
            values=to_host(self.values),
            ranks=to_host(self.ranks),
        )

    def entries(self) -> list[TokenLogprobs]:
        """One entry per row; waits for the device unless `fetched`."""
        columns = zip(
            self.ids.tolist(), self.values.tolist(), self.ranks.tolist(), self.widths, strict=True
        )
        return [
            TokenLogprobs(ids[: width + 1], values[: width + 1], rank)
            for ids, values, rank, width in columns
        ]


def raw_logprobs(logits: torch.Tensor) -> torch.Tensor:
    """``log_softmax`` in float32 over the last axis of unmodified logits."""
    return torch.log_softmax(logits.float(), dim=-1)


def take_logprobs(
    logprobs: torch.Tensor, chosen: torch.Tensor, widths: Sequence[int]
) -> LogprobBatch:
    """Those of ``chosen [N]`` and of the likeliest tokens, from ``logprobs float32 [N, vocab]``.

    `widths` says how many of the likeliest each row wants, -1 for all. The rank of a token is 1 +
    the number of strictly likelier ones.
    """
    vocab = logprobs.shape[-1]
    counts = tuple(vocab if width < 0 else min(width, vocab) for width in widths)
    own = logprobs.gather(-1, chosen[:, None])
    ranks = (logprobs > own).sum(-1) + 1
    top = logprobs.topk(max(counts, default=0), dim=-1)
    return LogprobBatch(
        ids=torch.cat((chosen[:, None], top.indices), dim=-1),
        values=torch.cat((own, top.values), dim=-1).clamp_min(LOGPROB_FLOOR),
        ranks=ranks,
        widths=counts,
    )
