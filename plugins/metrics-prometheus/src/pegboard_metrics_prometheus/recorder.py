"""The stat logger ``prometheus``: counts, and tells a registry what was counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from threading import Lock

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from pegboard.api.scheduler import CacheStats, SchedulerStats
from pegboard.api.stat_logger_front import FrontContext, RequestAdded, RequestFacts, TokenBatch
from pegboard_metrics_prometheus.catalogue import (
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    SLEEP_STATES,
    Kind,
    bounds_of,
)
from pegboard_metrics_prometheus.settings import Settings
from pegboard_metrics_prometheus.tallies import Tally

__all__ = ["PrometheusRecorder"]

_INFO = (
    *("block_size", "enable_prefix_caching", "gpu_memory_utilization", "kv_cache_memory_bytes"),
    *("mamba_cache_mode", "num_gpu_blocks_override"),
)
"""Settings that are labels of ``vllm:cache_config_info`` by their own names."""

Series = tuple[str, str | None]
"""A name, and the value of its further label."""


class PrometheusRecorder(Collector):
    """Counts for one engine. Its registry is its own, so that several engines of one process do
    not meet."""

    def __init__(self, ctx: FrontContext) -> None:
        settings: Settings = ctx.settings or Settings()
        self.model_name = settings.model_name or ctx.model
        """Label of all metrics; the endpoint changes it to the served name."""
        self._named = settings.model_name is not None
        self._engine = str(ctx.rank)
        self._info = _cache_info(ctx)
        self._lock = Lock()
        self._values = {series: 0.0 for kinds in (GAUGES, COUNTERS) for series in _series(kinds)}
        self._values["vllm:engine_sleep_state", "awake"] = 1.0
        self._tallies = {
            name: Tally(bounds_of(family, ctx.max_model_len))
            for name, (_, family) in HISTOGRAMS.items()
        }
        self._cache = CacheStats()
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        if settings.process_metrics:
            ProcessCollector(registry=self.registry)
            PlatformCollector(registry=self.registry)
            GCCollector(registry=self.registry)

    def serve_as(self, name: str) -> None:
        """The model is served by this name; nothing changes if the settings have one."""
        if not self._named:
            self.model_name = name

    # What happens

    def added(self, request: RequestAdded) -> None:
        """Counted when it ends."""

    def tokens(self, batch: TokenBatch) -> None:
        with self._lock:
            self._add("vllm:prompt_tokens", batch.prompt_tokens)
            self._add("vllm:generation_tokens", batch.tokens)
            self._add("vllm:prompt_tokens_cached", batch.cached_tokens)
            computed = batch.prompt_tokens - batch.cached_tokens
            self._add("vllm:prompt_tokens_by_source", computed, "local_compute")
            self._split_cached()
            self._tallies["vllm:iteration_tokens_total"].add(batch.prompt_tokens + batch.tokens)
            self._tallies["vllm:time_to_first_token_seconds"].add_all(batch.first)
            self._tallies["vllm:inter_token_latency_seconds"].add_all(batch.intervals)

    def finished(self, facts: RequestFacts) -> None:
        params = facts.params
        most = params.max_tokens if params.max_tokens is not None else facts.max_tokens
        longest = max(facts.generated, default=0)
        with self._lock:
            self._add("vllm:request_success", 1, facts.reason)
            self._tell("request_prompt_tokens", facts.prompt_tokens)
            self._tell("request_generation_tokens", sum(facts.generated))
            self._tell("request_max_num_generation_tokens", longest)
            self._tell("request_params_max_tokens", most)
            self._tell("request_params_n", params.n)
            self._tell("request_num_preemptions", facts.preemptions)
            self._tell("e2e_request_latency_seconds", facts.seconds)
            self._tell("request_queue_time_seconds", facts.queue)
            if facts.prefill is None or facts.decode is None:
                return  # it has no token
            computed = facts.prompt_tokens - facts.cached_tokens
            self._tell("request_prefill_kv_computed_tokens", computed)
            self._tell("request_prefill_time_seconds", facts.prefill)
            self._tell("request_decode_time_seconds", facts.decode)
            self._tell("request_inference_time_seconds", facts.prefill + facts.decode)
            if longest > 1:
                each = facts.decode / (longest - 1)
                self._tell("request_time_per_output_token_seconds", each)

    def scheduler(self, stats: SchedulerStats) -> None:
        usage = stats.used_blocks / stats.total_blocks if stats.total_blocks else 0.0
        with self._lock:
            self._values["vllm:num_requests_running", None] = stats.running
            self._values["vllm:num_requests_waiting", None] = stats.waiting
            self._values["vllm:num_requests_waiting_by_reason", "capacity"] = stats.waiting
            self._values["vllm:kv_cache_usage_perc", None] = usage
            for level, state in enumerate(SLEEP_STATES):
                self._values["vllm:engine_sleep_state", state] = float(level == stats.sleep_level)
            self._values["vllm:num_preemptions", None] = stats.preemptions
            new = stats.cache.since(self._cache)
            self._cache = stats.cache
            self._add("vllm:prefix_cache_queries", new.queried_tokens)
            self._add("vllm:prefix_cache_hits", new.hit_tokens)
            self._add("vllm:external_prefix_cache_queries", new.external_queried_tokens)
            self._add("vllm:external_prefix_cache_hits", new.external_hit_tokens)
            self._split_cached()

    def close(self) -> None:
        """Nothing is left to write; the last numbers can still be read."""

    def _add(self, name: str, amount: float, value: str | None = None) -> None:
        self._values[name, value] += amount

    def _tell(self, name: str, value: float | None) -> None:
        if value is not None:
            self._tallies[f"vllm:{name}"].add(value)

    def _split_cached(self) -> None:
        """Cached prompt tokens, by source: the scheduler tells how many came from outside, the
        rest is the own cache's. Neither falls."""
        cached = self._values["vllm:prompt_tokens_cached", None]
        outside = self._values["vllm:external_prefix_cache_hits", None]
        shares = {
            "external_kv_transfer": min(cached, outside),
            "local_cache_hit": max(0.0, cached - outside),
        }
        for source, share in shares.items():
            series = ("vllm:prompt_tokens_by_source", source)
            self._values[series] = max(self._values[series], share)

    # What is read

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now, as the client library wants them."""
        with self._lock:
            found = [*self._gauges(), *self._counters(), *self._histograms()]
        yield from found
        info = GaugeMetricFamily(
            "vllm:cache_config_info", "Settings of the KV cache.", labels=[*self._info]
        )
        info.add_metric([*self._info.values()], 1)
        yield info

    def _gauges(self) -> Iterator[Metric]:
        for name, kind in GAUGES.items():
            gauge = GaugeMetricFamily(name, kind.about, labels=_labels(kind))
            for value in kind.values or (None,):
                gauge.add_metric(self._label_values(value), self._values[name, value])
            yield gauge

    def _counters(self) -> Iterator[Metric]:
        for name, kind in COUNTERS.items():
            counter = CounterMetricFamily(name, kind.about, labels=_labels(kind))
            for value in kind.values or (None,):
                counter.add_metric(self._label_values(value), self._values[name, value])
            yield counter

    def _histograms(self) -> Iterator[Metric]:
        for name, tally in self._tallies.items():
            about = HISTOGRAMS[name][0]
            histogram = HistogramMetricFamily(name, about, labels=["model_name", "engine"])
            histogram.add_metric(self._label_values(None), tally.cumulative(), tally.sum)
            yield histogram

    def _label_values(self, value: str | None) -> list[str]:
        return [self.model_name, self._engine, *([] if value is None else [value])]


def _labels(kind: Kind) -> list[str]:
    return ["model_name", "engine", *([] if kind.label is None else [kind.label])]


def _series(kinds: Mapping[str, Kind]) -> Iterator[Series]:
    for name, kind in kinds.items():
        yield from ((name, value) for value in kind.values or (None,))


def _cache_info(ctx: FrontContext) -> dict[str, str]:
    """Labels of ``vllm:cache_config_info``."""
    found = {name: str(getattr(ctx.config, name)) for name in _INFO}
    return {
        **found,
        "cache_dtype": ctx.config.kv_cache_dtype,
        "num_gpu_blocks": str(ctx.num_blocks),
        "engine": str(ctx.rank),
    }
