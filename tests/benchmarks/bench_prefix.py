"""What the prefix cache saves: hit rate, and time to first token behind a long shared prefix.

Usage: ``python tests/benchmarks/bench_prefix.py MODEL [--rounds N] [--prefix 1500] [--json FILE]``.

Two engines with the same settings, one with the cache and one without, take turns within each
round. A round draws a new prefix; the first request computes it, then others bring the same prefix
and a question of their own. The goal is a time to first token that falls to a third or less. Token
ids are random; greedy answers of both engines are compared, so that speed is not bought with wrong
tokens (ties may part them; the share that agrees is printed).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path

import attrs

GOAL = 3.0


@attrs.frozen
class Shape:
    """Lengths in tokens."""

    prefix: int
    question: int
    requests: int
    """Requests of a round that find the prefix computed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prefix", type=int, default=1500)
    parser.add_argument("--question", type=int, default=32)
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    shape = Shape(options.prefix, options.question, options.requests)
    record = measure(options.model, options.dtype, shape, options.rounds)
    report(record)
    if options.json is not None:
        options.json.write_text(json.dumps(attrs.asdict(record), indent=1))


@attrs.define
class Record:
    """Seconds to the first token per request, round by round in step with one another."""

    with_cache: list[float] = attrs.field(factory=list)
    without: list[float] = attrs.field(factory=list)
    first: list[float] = attrs.field(factory=list)
    """Of the requests that computed a prefix, cache on."""
    queried: int = 0
    hit: int = 0
    same: int = 0
    """Answers that agree."""
    answers: int = 0


def measure(model: str, dtype: str, shape: Shape, rounds: int) -> Record:
    """Run all rounds after one to warm up."""
    from pegboard import LLM, SamplingParams

    context = shape.prefix + shape.question + 16
    engines = [
        LLM(model, dtype=dtype, max_model_len=context, enable_prefix_caching=cached)
        for cached in (True, False)
    ]
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    vocabulary = engines[0].model.facts.vocab_size
    draws = random.Random(0)

    def ask(engine: LLM, prompt: list[int]) -> tuple[float, list[int], int]:
        begin = time.perf_counter()
        (answer,) = engine.generate([prompt], params, use_tqdm=False)
        taken = time.perf_counter() - begin
        return taken, list(answer.outputs[0].token_ids), answer.num_cached_tokens or 0

    def tokens(count: int) -> list[int]:
        return [draws.randrange(vocabulary) for _ in range(count)]

    record = Record()
    for number in range(rounds + 1):
        prefix = tokens(shape.prefix)
        first, _, _ = ask(engines[0], prefix + tokens(shape.question))
        kept = Record() if number == 0 else record
        kept.first.append(first)
        for _ in range(shape.requests):
            prompt = prefix + tokens(shape.question)
            (fast, ours, hit), (slow, theirs, _) = (ask(engine, prompt) for engine in engines)
            kept.with_cache.append(fast)
            kept.without.append(slow)
            kept.queried += len(prompt)
            kept.hit += hit
            kept.same += ours == theirs
            kept.answers += 1
    return record


def report(record: Record) -> None:
    """Print medians and the ratio of each pair."""
    ratios = [slow / fast for fast, slow in zip(record.with_cache, record.without, strict=True)]
    rows = {
        "first, computes the prefix": record.first,
        "later, cache on": record.with_cache,
        "later, cache off": record.without,
    }
    for name, seconds in rows.items():
        middle = statistics.median(seconds)
        print(f"{name:<28} {middle:.3f} s ({min(seconds):.3f}-{max(seconds):.3f})")
    print(f"time to first token falls {statistics.median(ratios):.1f} x (goal {GOAL} x)")
    print(f"hit rate of later requests   {record.hit / record.queried:.1%}")
    print(f"answers that agree           {record.same} of {record.answers}")


if __name__ == "__main__":
    main()
