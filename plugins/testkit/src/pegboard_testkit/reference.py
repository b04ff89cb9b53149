"""A reference implementation as the oracle: a module from ids to logits, teacher-forced."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from pegboard import RequestOutput
from pegboard_testkit.near_tie import Comparison, compare

__all__ = ["compare_distributions", "distributions", "reference_logprobs"]


def reference_logprobs(model: Callable[[torch.Tensor], Any], ids: list[int]) -> np.ndarray:
    """``[len(ids), vocab]``: row i predicts token i + 1. ``model(ids [1, n]).logits`` is ``[1, n,
    vocab]``."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double()
        rows: np.ndarray = torch.log_softmax(logits, -1).numpy()
    return rows


def distributions(output: RequestOutput) -> np.ndarray:
    """``[positions, vocab]`` of the prompt's and the output's tokens, the first prompt token
    excepted; of a request with ``logprobs=-1`` and ``prompt_logprobs=-1``."""
    assert output.prompt_logprobs is not None and output.outputs[0].logprobs is not None
    entries = [*output.prompt_logprobs[1:], *output.outputs[0].logprobs]
    rows = [[entry[token].logprob for token in sorted(entry)] for entry in entries if entry]
    assert len(rows) == len(entries)
    return np.array(rows)


def compare_distributions(
    model: Callable[[torch.Tensor], Any], outputs: Iterable[RequestOutput], tolerance: float
) -> Comparison:
    """Demand that every distribution agrees within `tolerance`; what came of the greedy tokens."""
    found = Comparison()
    for output in outputs:
        made = output.outputs[0].token_ids
        rows = reference_logprobs(model, output.prompt_token_ids + made)[:-1]
        ours = distributions(output)
        assert ours.shape == rows.shape, "one distribution per position"
        assert np.abs(ours - rows).max() <= tolerance
        ahead = rows[len(output.prompt_token_ids) - 1 :]
        chosen = ahead[np.arange(len(made)), made]
        found = found.add(compare(chosen.tolist(), ahead.max(axis=1).tolist()))
    return found
