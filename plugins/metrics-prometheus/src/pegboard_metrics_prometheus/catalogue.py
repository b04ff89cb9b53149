"""What is told, as data: names, labels and buckets are those of vLLM 0.33, so that dashboards and
alerts made for it go on working.

Every metric has the labels ``model_name`` and ``engine``; `Kind.label` is one more. Times are
seconds. Counters are named here without the ``_total`` that they are exposed with.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

__all__ = [
    "COUNTERS",
    "GAUGES",
    "HISTOGRAMS",
    "REASONS",
    "SLEEP_STATES",
    "SOURCES",
    "WAITING_REASONS",
    "Kind",
    "bounds_of",
]

REASONS = ("stop", "length", "abort", "error")
SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
WAITING_REASONS = ("capacity", "deferred")
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")


class Kind(NamedTuple):
    """One counter or gauge."""

    about: str
    label: str | None = None
    values: tuple[str, ...] = ()
    """Of the label."""


GAUGES = MappingProxyType(
    {
        "vllm:num_requests_running": Kind("Requests that take part in steps."),
        "vllm:num_requests_waiting": Kind("Requests that wait to be scheduled."),
        "vllm:num_requests_waiting_by_reason": Kind(
            "Requests that wait, by what they wait for; reasons are not told apart, all count as "
            "capacity.",
            "reason",
            WAITING_REASONS,
        ),
        "vllm:kv_cache_usage_perc": Kind("Share of the KV blocks that is in use, 0 to 1."),
        "vllm:engine_sleep_state": Kind(
            "1 for the state that the engine is in.", "sleep_state", SLEEP_STATES
        ),
    }
)
COUNTERS = MappingProxyType(
    {
        "vllm:num_preemptions": Kind("Times that a request lost its blocks."),
        "vllm:prompt_tokens": Kind("Prompt tokens of requests that got their first token."),
        "vllm:prompt_tokens_by_source": Kind(
            "The same, by where their keys and values came from.", "source", SOURCES
        ),
        "vllm:prompt_tokens_cached": Kind("Those that came from a cache, own or outside."),
        "vllm:generation_tokens": Kind("Tokens that were generated."),
        "vllm:request_success": Kind("Requests that ended, by how.", "finished_reason", REASONS),
        "vllm:prefix_cache_queries": Kind("Prompt tokens that looked into the prefix cache."),
        "vllm:prefix_cache_hits": Kind("Those that were found there."),
        "vllm:external_prefix_cache_queries": Kind(
            "Prompt tokens that a KV connector was asked for."
        ),
        "vllm:external_prefix_cache_hits": Kind("Those that it loaded."),
    }
)
HISTOGRAMS = MappingProxyType(
    {
        "vllm:request_prompt_tokens": ("Prompt tokens of a request.", "tokens"),
        "vllm:request_generation_tokens": ("Tokens generated for a request.", "tokens"),
        "vllm:request_max_num_generation_tokens": (
            "Tokens of the longest sequence of a request.",
            "tokens",
        ),
        "vllm:request_params_max_tokens": ("max_tokens of a request.", "tokens"),
        "vllm:request_prefill_kv_computed_tokens": (
            "Prompt tokens of a request that no cache had.",
            "tokens",
        ),
        "vllm:request_params_n": ("n of a request.", "n"),
        "vllm:request_num_preemptions": ("Preemptions of a request.", "preemptions"),
        "vllm:iteration_tokens_total": ("Prompt and generated tokens of a step.", "iteration"),
        "vllm:time_to_first_token_seconds": ("From arrival to the first token.", "first"),
        "vllm:inter_token_latency_seconds": (
            "Between two outputs of a sequence.",
            "inter",
        ),
        "vllm:request_time_per_output_token_seconds": (
            "Mean time between the tokens of a request.",
            "inter",
        ),
        "vllm:e2e_request_latency_seconds": ("From arrival to the end.", "phase"),
        "vllm:request_queue_time_seconds": ("Waiting to be scheduled.", "phase"),
        "vllm:request_inference_time_seconds": ("From scheduled to the last token.", "phase"),
        "vllm:request_prefill_time_seconds": ("From scheduled to the first token.", "phase"),
        "vllm:request_decode_time_seconds": ("From the first token to the last.", "phase"),
    }
)
"""What it is, and its family of buckets."""

_FAMILIES = MappingProxyType(
    {
        "n": (1, 2, 5, 10, 20),
        "preemptions": (1, 2, 3, 4, 5, 10, 20),
        "iteration": (1, *(2**power for power in range(3, 15))),
        "first": (
            *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
            *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
        ),
        "inter": (
            *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
            *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
        ),
        "phase": (
            *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
            *(60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
        ),
    }
)


def bounds_of(family: str, max_model_len: int) -> tuple[float, ...]:
    """Upper bounds of a family of buckets. Those of ``tokens`` are 1, 2, 5, 10, 20, 50 and so on,
    as far as a request can be long."""
    if family != "tokens":
        return tuple(map(float, _FAMILIES[family]))
    decades = (10**power for power in range(len(str(max_model_len))))
    values = (digit * decade for decade in decades for digit in (1, 2, 5))
    return tuple(float(value) for value in values if value <= max_model_len)
