"""The op that turns logits into token ids by the parameters of each row, greedy rows and random
ones alike, without a look from the host."""

from __future__ import annotations

import torch

from pegboard.sampling.draw import draw
from pegboard.sampling.random import device_uniforms
from pegboard.sampling.rows import RandomRows

__all__ = ["choose"]


def choose(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seed: torch.Tensor,
    child: torch.Tensor,
    position: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(ids int64 [R], status int8 [R])`` of ``logits [R, vocab]`` in any float dtype.

    Columns are ``[R]``: float64 `temperature` (0: take the likeliest token, the lowest id among
    equals), `top_p` (1: no filter) and `min_p` (0: none), int64 `top_k` (0: none), and the int64
    key of the row's draw, see `pegboard.sampling.random`. Filters and draw are those of
    `pegboard.sampling.draw`; a version may sum in float32, so that a draw within rounding of the
    border between two tokens, or a token within rounding of a filter's threshold, may fall on the
    other side. Status is 1 where the largest logit is not a finite number (the id is some id of
    the vocabulary then), else 0.
    """
    wide = logits.float()
    status = (~wide.amax(-1).isfinite()).to(torch.int8)
    ids = wide.argmax(-1)
    rows = temperature.nonzero()[:, 0]
    if len(rows):
        ids[rows] = draw(
            wide,
            RandomRows(
                rows=rows,
                uniforms=device_uniforms(seed[rows], child[rows], position[rows]),
                temperature=temperature[rows],
                min_p=min_p[rows],
                top_k=top_k[rows],
                top_p=top_p[rows],
                uses_min_p=(min_p[rows] > 0).cpu().numpy(),
                uses_top_k=((top_k[rows] > 0) & (top_k[rows] < logits.shape[-1])).cpu().numpy(),
                uses_top_p=(top_p[rows] < 1).cpu().numpy(),
                most=int(top_k[rows].max()),
            ),
        )
    return ids, status
