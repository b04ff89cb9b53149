"""Figures for people, and where they are kept."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from pegboard.errors import ResourceError

__all__ = ["as_json", "table", "write_text"]

_COUNTS = (
    ("completed", "requests that were answered", "d"),
    ("failed", "requests that failed", "d"),
    ("duration", "duration, s", ".2f"),
    ("total_input_tokens", "input tokens", "d"),
    ("total_output_tokens", "output tokens", "d"),
    ("request_throughput", "requests per second", ".2f"),
    ("request_goodput", "requests per second that meet the goals", ".2f"),
    ("output_throughput", "output tokens per second", ".2f"),
    ("max_output_tokens_per_s", "output tokens in the best second", ".0f"),
    ("total_token_throughput", "tokens per second in all", ".2f"),
    ("max_concurrent_requests", "most requests at once", "d"),
)
_TIMES = (
    ("ttft", "time to first token"),
    ("scheduled_ttft", "the same, from the schedule"),
    ("tpot", "time per output token after the first"),
    ("itl", "time between pieces"),
    ("e2el", "time to the end of the answer"),
    ("scheduled_e2el", "the same, from the schedule"),
    ("send_lag", "sent after the schedule by"),
)


def table(found: Mapping[str, Any]) -> str:
    """All of it, a figure or a metric a line."""
    return "\n".join([*_counts(found), "", *_latencies(found), "", *_client(found)])


def _counts(found: Mapping[str, Any]) -> Iterator[str]:
    for key, words, form in _COUNTS:
        if found.get(key) is not None:
            yield f"{words:<42} {found[key]:>12{form}}"


def _latencies(found: Mapping[str, Any]) -> Iterator[str]:
    shares = dict.fromkeys(key.partition("_")[0] for key in found if _is_share(key))
    heads = ["mean", "median", "std", *shares]
    yield f"{'milliseconds':<42}" + "".join(f"{head:>10}" for head in heads)
    for name, words in _TIMES:
        values = [found.get(f"{head}_{name}_ms") for head in heads]
        if values[0] is not None:
            yield f"{words:<42}" + "".join(f"{value or 0.0:>10.2f}" for value in values)


def _is_share(key: str) -> bool:
    """A percentile of some metric: all metrics have the same."""
    return key.startswith("p") and key[1:2].isdigit() and key.endswith("_ms")


def _client(found: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"this client used {100 * found['client_cpu_share']:.0f} % of a processor; its event loop "
        f"was late by {found['client_loop_lag_ms']:.2f} ms (p99)"
    )
    for note in found["notes"]:
        yield f"note: {note}"


def write_text(path: str, text: str) -> None:
    """Make a file, and the folders that it needs. Raises `ResourceError`."""
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ResourceError(f"{path} cannot be written: {error.strerror or error}") from None


def as_json(content: Mapping[str, Any]) -> str:
    """For files and standard output."""
    return json.dumps(content, indent=2) + "\n"
