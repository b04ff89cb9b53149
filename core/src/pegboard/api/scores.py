"""Log-probabilities as they pass from the runner to the front end."""

from __future__ import annotations

import msgspec

__all__ = ["PromptLogprobs", "TokenLogprobs"]


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
