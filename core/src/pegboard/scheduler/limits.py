"""How prompts that take several steps share them.

Without limits a prompt takes what is left of a step's budget, one prompt after the other: a long
one holds up the short ones behind it. Two settings change that.

* ``long_prefill_token_threshold``: of a prompt with more than so many tokens left, a step computes
  at most so many.
* ``max_num_partial_prefills`` above 1: so many prompts may be unfinished at once, and share the
  budget evenly; at most ``max_long_partial_prefills`` of them are long, and while those run, long
  prompts are passed over in the queue.

Tokens of a preempted request that are computed again count like a prompt.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice

from pegboard.config.engine import EngineConfig
from pegboard.scheduler.request import Request

__all__ = ["PrefillLimits"]

_LONG_SHARE = 0.04
"""Share of the context from which on a prompt is long, where no threshold is set."""
_LOOKED_AT = 128
"""Waiting requests among which those are counted that will share the budget."""


class PrefillLimits:
    """Counts unfinished prompts in a step and says what the next one may do."""

    def __init__(self, config: EngineConfig) -> None:
        self.concurrent = config.max_num_partial_prefills > 1
        """Prompts share the budget; else only the threshold limits them."""
        self._cap = config.long_prefill_token_threshold
        self._most = config.max_num_partial_prefills
        self._most_long = config.max_long_partial_prefills
        context = config.max_model_len or 0
        self._long = self._cap or max(int(context * _LONG_SHARE), 1)
        self._share = 0
        self._partial = self._partial_long = 0

    def begin(self, budget: int, running: Iterable[Request], waiting: Iterable[Request]) -> None:
        """A step is planned: divide its budget among the prompts that may share it."""
        if not self.concurrent:
            return
        lengths = chain(
            (request.ready for request in running if request.ready > 1),
            (request.known for request in islice(waiting, _LOOKED_AT)),
        )
        sharers = longs = 0
        for length in lengths:
            long = length > self._long
            if sharers == self._most:
                break
            if long and longs == self._most_long:
                continue
            sharers, longs = sharers + 1, longs + long
        self._share = max(budget // max(sharers, 1), 1)

    def cut(self, rest: int, count: int) -> int:
        """Shorten a chunk of `count` tokens of a request that has `rest` left to compute."""
        if self._cap and count > self._cap:
            count = self._cap
        if self.concurrent and rest > 1 and count > self._share:
            count = self._share
        return count

    def count(self, running: Iterable[Request]) -> None:
        """Running requests have their chunks: count those that stay unfinished."""
        if not self.concurrent:
            return
        rests = [request.ready for request in running if request.ready > 0]
        self._partial = len(rests)
        self._partial_long = sum(rest > self._long for rest in rests)

    def passes_over(self, rest: int) -> bool:
        """A waiting request with `rest` tokens to compute is long, and enough long ones run."""
        return self.concurrent and rest > self._long and self._partial_long >= self._most_long

    def admits(self, rest: int, count: int) -> bool:
        """Whether a waiting request may begin with `count` of its `rest` tokens."""
        return not self.concurrent or count == rest or self._partial < self._most

    def admitted(self, rest: int, count: int) -> None:
        """A waiting request began."""
        if count < rest:
            self._partial += 1
            self._partial_long += rest - count > self._long
