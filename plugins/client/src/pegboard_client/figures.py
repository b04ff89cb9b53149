"""From records to the figures that are reported, by the names that dashboards know."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import attrs

from pegboard.errors import ConfigError
from pegboard_client.load import Outcome, Record

__all__ = ["METRICS", "Wanted", "figures", "percentile", "series"]

METRICS = ("ttft", "tpot", "itl", "e2el")
"""Time to first token, per output token after it, between pieces, and to the end of the answer."""

BUSY_SHARE = 0.75
LATE_SECONDS = 0.02


@attrs.frozen
class Wanted:
    """What is to be reported."""

    metrics: tuple[str, ...] = METRICS
    percentiles: tuple[float, ...] = (99.0,)
    goodput: Mapping[str, float] = attrs.field(factory=dict)
    """Most milliseconds of a metric for a request to count as served well."""

    @classmethod
    def of_words(cls, metrics: str, percentiles: str, goodput: Iterable[str]) -> Wanted:
        """From ``"ttft,tpot"``, ``"50,99"`` and ``["ttft:500", "tpot:50"]``. Raises
        `ConfigError`."""
        names = tuple(word.strip() for word in metrics.split(",") if word.strip())
        for name in names:
            if name not in METRICS:
                raise ConfigError(
                    f"--percentile-metrics names {name!r}; allowed are {', '.join(METRICS)}"
                )
        return cls(names, _percentiles(percentiles), dict(map(_objective, goodput)))


def _percentiles(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(word) for word in text.split(",") if word.strip())
    except ValueError:
        found = (math.nan,)
    if not all(0 <= value <= 100 for value in found):
        raise ConfigError(
            f"--metric-percentiles {text!r} is not allowed: numbers from 0 to 100, with commas"
        )
    return found


def _objective(pair: str) -> tuple[str, float]:
    name, _, text = pair.partition(":")
    try:
        limit = float(text)
    except ValueError:
        limit = math.nan
    if name not in ("ttft", "tpot", "e2el") or not limit > 0:
        raise ConfigError(
            f"--goodput {pair!r} is not allowed: ttft, tpot or e2el, a colon and milliseconds"
        )
    return name, limit


def figures(outcome: Outcome, wanted: Wanted) -> dict[str, Any]:
    """All figures of a load; times in milliseconds, rates per second.

    TTFT and E2EL count from when a request was sent. In an open loop they are told a second time,
    as ``scheduled_…``, from when it should have been sent: what a user waits who comes at that
    time, however late this client is.
    """
    good = [record for record in outcome.records if not record.error]
    seconds = outcome.duration
    inputs, outputs = (sum(getattr(r, n) for r in good) for n in ("input_tokens", "output_tokens"))
    tokens, flying = series(outcome)
    return {
        "duration": seconds,
        "completed": len(good),
        "failed": len(outcome.records) - len(good),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(good) / seconds,
        "request_goodput": _goodput(good, wanted.goodput, seconds),
        "output_throughput": outputs / seconds,
        "total_token_throughput": (inputs + outputs) / seconds,
        "max_output_tokens_per_s": max(tokens, default=0.0),
        "max_concurrent_requests": max(flying, default=0),
        **_latencies(good, wanted),
        **_client(outcome),
    }


def _goodput(good: Sequence[Record], limits: Mapping[str, float], seconds: float) -> float | None:
    if not limits:
        return None
    served = 0
    for record in good:
        # A single token has no time per further token, so none that could be too long.
        times = {name: getattr(record, name) or 0.0 for name in limits}
        served += all(1000 * times[name] <= limit for name, limit in limits.items())
    return served / seconds


def _latencies(good: Sequence[Record], wanted: Wanted) -> dict[str, float]:
    values: dict[str, list[float]] = {
        "ttft": [record.ttft for record in good],
        "tpot": [record.tpot for record in good if record.tpot is not None],
        "itl": [gap for record in good for gap in record.gaps],
        "e2el": [record.e2el for record in good],
    }
    shown = {name: values[name] for name in wanted.metrics}
    planned = [(record, record.scheduled) for record in good if record.scheduled is not None]
    if planned:
        shown["scheduled_ttft"] = [record.first - moment for record, moment in planned]
        shown["scheduled_e2el"] = [record.last - moment for record, moment in planned]
        shown["send_lag"] = [record.sent - moment for record, moment in planned]
    found: dict[str, float] = {}
    for name, seconds in shown.items():
        found |= _summary(name, [1000 * value for value in seconds], wanted.percentiles)
    return found


def _summary(name: str, values: list[float], percentiles: Iterable[float]) -> dict[str, float]:
    """Zeros where there are no values."""
    values.sort()
    mean = math.fsum(values) / len(values) if values else 0.0
    spread = math.fsum((value - mean) ** 2 for value in values)
    found = {
        f"mean_{name}_ms": mean,
        f"median_{name}_ms": percentile(values, 50),
        f"std_{name}_ms": math.sqrt(spread / len(values)) if values else 0.0,
    }
    for share in percentiles:
        found[f"p{share:g}_{name}_ms"] = percentile(values, share)
    return found


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of ascending values, with linear interpolation between the two nearest; 0 without any."""
    if not ordered:
        return 0.0
    place = (len(ordered) - 1) * share / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def series(outcome: Outcome) -> tuple[list[float], list[int]]:
    """By second: tokens that came, and the most requests that were under way at once.

    Where a piece holds several tokens, they count as if they were spread evenly over the pieces.
    """
    length = math.ceil(outcome.duration) or 1
    tokens, changes = [0.0] * length, []
    for record in outcome.records:
        if record.error:
            continue
        moments = list(accumulate([record.first, *record.gaps]))
        for moment in moments:
            second = min(int(moment - outcome.begin), length - 1)
            tokens[second] += record.output_tokens / len(moments)
        changes += [(record.sent - outcome.begin, 1), (record.last - outcome.begin, -1)]
    return tokens, _peaks(sorted(changes), length)


def _peaks(changes: Sequence[tuple[float, int]], length: int) -> list[int]:
    peaks, flying, second = [0] * length, 0, 0
    for moment, step in changes:
        now = min(int(moment), length - 1)
        while second < now:
            second += 1
            peaks[second] = flying
        flying += step
        peaks[second] = max(peaks[second], flying)
    return peaks


def _client(outcome: Outcome) -> dict[str, Any]:
    """What the client itself cost, and whether it was too slow to measure well."""
    share = outcome.cpu_seconds / outcome.duration
    lag = percentile(sorted(outcome.loop_lags), 99)
    good = [record for record in outcome.records if not record.error]
    notes = []
    if share > BUSY_SHARE:
        notes.append(
            f"this client was the bottleneck or close to it: it used {100 * share:.0f} % of the "
            "one processor that it can use; share the load out among several"
        )
    elif lag > LATE_SECONDS:
        notes.append(
            f"this machine was too busy for this client: it came to its work {1000 * lag:.1f} ms "
            "late (p99), and times are told as too long by as much"
        )
    if any(not record.counted for record in good):
        notes.append("the server tells no usage: pieces of answers were counted as tokens")
    return {
        "client_cpu_seconds": outcome.cpu_seconds,
        "client_cpu_share": share,
        "client_loop_lag_ms": 1000 * lag,
        "tokens_counted_by": "server" if all(record.counted for record in good) else "pieces",
        "notes": notes,
    }
