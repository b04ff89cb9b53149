"""An engine that serves one request at a time as the oracle of any schedule.

It scores the tokens that the schedule under test chose, all at once behind their prompt.
"""

from __future__ import annotations

from collections.abc import Iterable

from pegboard import LLM, RequestOutput, SamplingParams
from pegboard_testkit.near_tie import Comparison, compare

__all__ = ["compare_with_alone", "scores"]


def scores(alone: LLM, prompt: list[int], tokens: list[int]) -> tuple[list[float], list[float]]:
    """The oracle's log-probability of each of `tokens`, and of the likeliest one in its place."""
    ids = prompt + tokens
    params = SamplingParams(max_tokens=0, prompt_logprobs=1)
    (scored,) = alone.generate(ids, params, use_tqdm=False)
    assert scored.prompt_logprobs is not None
    entries = [entry for entry in scored.prompt_logprobs[len(prompt) :] if entry]
    chosen = [entry[token].logprob for entry, token in zip(entries, tokens, strict=True)]
    return chosen, [max(item.logprob for item in entry.values()) for entry in entries]


def compare_with_alone(alone: LLM, outputs: Iterable[RequestOutput]) -> Comparison:
    """Compare first sequences, which ran with ``logprobs=0`` and ended by their length."""
    found = Comparison()
    for output in outputs:
        made = output.outputs[0]
        assert made.logprobs is not None and made.finish_reason == "length"
        pairs = zip(made.logprobs, made.token_ids, strict=True)
        own = [entry[token].logprob for entry, token in pairs]
        found = found.add(compare(*scores(alone, output.prompt_token_ids, made.token_ids), own))
    return found
