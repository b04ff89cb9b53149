"""Filters of the distribution, and the draw itself.

Probabilities are kept as unnormalised float64 weights ``exp((logit - max) / temperature)``, so the
likeliest token has weight 1 and an excluded one 0. A filter drops every token whose weight is below
a threshold that it finds per row; tokens exactly at the threshold stay. So *ties are kept*: `top_k`
keeps k tokens and all that are equally likely as the k-th, `top_p` likewise, on every device.

The draw inverts the cumulative distribution in the order of token ids: the token taken is the first
one at which the sum of weights exceeds ``u * total``. With one u per row
(`pegboard.sampling.random`), it depends on the row's seed, child, position and distribution only.
On a CPU rows are drawn one by one, which makes that true bit for bit; elsewhere they are drawn in
groups, and float64 sums may differ in their last bits with the size of a group.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from pegboard.nn.transit import send
from pegboard.sampling.rows import Flags, RandomRows

__all__ = ["draw", "filtered_weights"]

GROUP = 32
"""Rows that are drawn together where that is quicker; bounds the float64 scratch memory."""


def draw(logits: torch.Tensor, random: RandomRows, *, group: int | None = None) -> torch.Tensor:
    """Draw a token for each random row of ``logits [R, vocab]`` (processed, float32): int64 [N].

    `group` rows are drawn together; None is 1 on a CPU and `GROUP` elsewhere.
    """
    step = group or (1 if logits.device.type == "cpu" else GROUP)
    parts = []
    for begin in range(0, len(random), step):
        part = random.part(slice(begin, begin + step))
        weights = filtered_weights(logits[part.rows], part)
        parts.append(_invert(weights, part.uniforms))
    return torch.cat(parts)


def filtered_weights(logits: torch.Tensor, random: RandomRows) -> torch.Tensor:
    """Temperature, min_p, top_k, top_p: float64 weights ``[N, vocab]`` of ``logits [N, vocab]``."""
    weights = logits.double()
    weights -= weights.amax(-1, keepdim=True)
    weights /= random.temperature[:, None]
    weights.exp_()
    _drop(weights, random.uses_min_p, lambda _, rows: random.min_p[rows, None])
    _drop(
        weights, random.uses_top_k, lambda some, rows: _kth(some, random.top_k[rows], random.most)
    )
    _drop(weights, random.uses_top_p, lambda some, rows: _nucleus(some, random.top_p[rows]))
    return weights


def _drop(
    weights: torch.Tensor,
    uses: Flags,
    threshold: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    """In the rows that use it, set weights below ``threshold(weights, rows) [n, 1]`` to 0."""
    if not uses.any():
        return
    rows = send(weights.device, uses.nonzero()[0])[0]
    if uses.all():
        weights.masked_fill_(weights < threshold(weights, rows), 0.0)
        return
    some = weights[rows]
    weights[rows] = some.masked_fill_(some < threshold(some, rows), 0.0)


def _kth(weights: torch.Tensor, top_k: torch.Tensor, most: int) -> torch.Tensor:
    """The k-th largest weight of each row ``[n, 1]``; no k is above `most`."""
    most = min(most, weights.shape[-1])
    largest = weights.topk(most, dim=-1).values
    return largest.gather(-1, top_k.clamp(max=most)[:, None] - 1)


def _nucleus(weights: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The least weight of the smallest set of largest ones whose share is `top_p`: ``[n, 1]``."""
    target = weights.sum(-1, keepdim=True) * top_p[:, None]
    largest = _descending(weights)
    before = (largest.cumsum(-1) < target).sum(-1, keepdim=True)
    return largest.gather(-1, before.clamp(max=largest.shape[-1] - 1))


def _descending(weights: torch.Tensor) -> torch.Tensor:
    """Each row in falling order. On a CPU numpy sorts more than ten times as fast as torch."""
    if weights.device.type == "cpu":
        return torch.from_numpy(np.sort(weights.numpy(), axis=-1)).flip(-1)
    return weights.sort(dim=-1, descending=True).values


def _invert(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The token at which the running sum of weights first exceeds ``u * total``: int64 [N].

    u is at most ``1 - 2^-53``, so the product is below the total and the token has a positive
    weight. A row of NaN (its request fails) gives some id inside the vocabulary.
    """
    sums = weights.cumsum(-1)
    place = torch.searchsorted(sums, uniforms[:, None] * sums[:, -1:], right=True)
    return place[:, 0].clamp(max=weights.shape[-1] - 1)
