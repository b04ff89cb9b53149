"""Requests and figures that kits tell stat loggers and tracers of."""

from __future__ import annotations

from typing import Any

from pegboard import SamplingParams
from pegboard.api.scheduler import CacheStats, SchedulerStats
from pegboard.api.stat_logger_front import RequestFacts, TokenBatch

__all__ = ["NULL_ENGINE", "ended", "ended_in_all_ways", "scheduled", "token_batch"]

NULL_ENGINE: dict[str, Any] = {
    "distributed_executor_backend": "null",
    "max_model_len": 64,
    "num_gpu_blocks_override": 16,
}
"""Options of an engine that computes nothing."""


def ended(name: str = "r", **changes: Any) -> RequestFacts:
    """A request of two sequences that went well, but for `changes`."""
    known: dict[str, Any] = {
        "arrival": 1000.5,
        "prompt_tokens": 7,
        "cached_tokens": 4,
        "generated": (3, 2),
        "reasons": ("stop", "length"),
        "max_tokens": 9,
        "params": SamplingParams(n=2, temperature=0.5, top_p=0.75),
        "seconds": 2.0,
        "first_token": 0.5,
        "queue": 0.125,
        "prefill": 0.25,
        "decode": 1.0,
        "preemptions": 0,
    }
    return RequestFacts(name, **{**known, **changes})


def ended_in_all_ways() -> list[RequestFacts]:
    """One for each way to end: whole, before it ran, while it ran, with the engine."""
    never = {"first_token": None, "queue": None, "prefill": None, "decode": None}
    one = {"params": SamplingParams()}
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    return [
        ended("whole", trace_headers=headers),
        ended("waiting", generated=(0,), reasons=("abort",), **one, **never),
        ended("running", generated=(1,), reasons=("abort",), decode=0.0, preemptions=2, **one),
        ended("dead", generated=(0, 0), reasons=("error", "error"), **{**never, "queue": 0.5}),
        ended("odd", trace_headers={"traceparent": "no such thing"}),
    ]


def token_batch(streams: int = 256) -> TokenBatch:
    """A message with one token for each of so many sequences, the first for one of them."""
    return TokenBatch(streams, streams, [0.25], [0.02] * (streams - 1), 7, 4)


def scheduled(running: int, resets: int = 0) -> SchedulerStats:
    """So many requests run; the cache was reset so often."""
    cache = CacheStats(queried_tokens=10 * running, hit_tokens=running, resets=resets)
    return SchedulerStats(running, 1, running, 15, 2, cache)
