"""The near-tie rule: when are two greedy decodings the same?

Products over one row and over sixty-four differ in their last bits, so two correct engines may pick
different tokens where the two likeliest ones are all but equal. Decodings count as the same if,
along the tokens that *ours* chose, every log-probability agrees within a tolerance, every token
that is not the reference's likeliest one lies within `gap` nats of it, and at most `share` of the
positions are such ties. A figure that is not a number fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import attrs

__all__ = ["Comparison", "assert_same", "compare"]


@attrs.define
class Comparison:
    """What a comparison found; sums over several sequences with `add`."""

    positions: int = 0
    ties: int = 0
    """Positions where our token is not the reference's likeliest."""
    worst_gap: float = 0.0
    """Largest distance, in nats, of our token from the reference's likeliest one."""
    worst_logprob: float = 0.0
    """Largest difference of the two log-probabilities of our token."""

    def add(self, other: Comparison) -> Comparison:
        """Both together."""
        return Comparison(
            self.positions + other.positions,
            self.ties + other.ties,
            _worst((self.worst_gap, other.worst_gap)),
            _worst((self.worst_logprob, other.worst_logprob)),
        )


def compare(
    chosen: Sequence[float], best: Sequence[float], logprobs: Sequence[float] | None = None
) -> Comparison:
    """Compare one sequence of n tokens that ours chose, with the reference teacher-forced along it.

    Args:
        chosen: The reference's log-probability of each token.
        best: The reference's highest log-probability at each position.
        logprobs: Our own log-probability of each token; None leaves them out.

    Raises:
        ValueError: The sequences differ in length, or a `best` is below its `chosen`.
    """
    gaps = [top - own for top, own in zip(best, chosen, strict=True)]
    for place, gap in enumerate(gaps):
        if gap < 0:
            raise ValueError(
                f"best[{place}]={best[place]} is below chosen[{place}]={chosen[place]}; it must be "
                "the highest log-probability at the position"
            )
    off: list[float] = []
    if logprobs is not None:
        off = [abs(ours - own) for ours, own in zip(logprobs, chosen, strict=True)]
    return Comparison(len(gaps), sum(gap > 0 for gap in gaps), _worst(gaps), _worst(off))


def assert_same(
    found: Comparison, *, gap: float = 1e-3, logprob: float = 1e-3, share: float = 0.01
) -> None:
    """Fail with the figures unless the comparison passes the near-tie rule."""
    assert found.positions > 0, "nothing was compared"
    assert found.worst_logprob <= logprob, (
        f"log-probabilities differ by up to {found.worst_logprob}"
    )
    assert found.worst_gap <= gap, f"a token lies {found.worst_gap} nats below the likeliest one"
    allowed = max(1, int(share * found.positions))
    assert found.ties <= allowed, f"{found.ties} of {found.positions} positions differ"


def _worst(values: Iterable[float]) -> float:
    """The largest, 0 if there is none; NaN if there is one, which `max` may drop."""
    worst = 0.0
    for value in values:
        if math.isnan(value):
            return value
        worst = max(worst, value)
    return worst
