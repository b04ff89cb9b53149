"""Names, labels, buckets and the text itself are what dashboards made for vLLM 0.33 want."""

from __future__ import annotations

import re
from typing import Any

import pytest
from prometheus_client import generate_latest

from pegboard import EngineConfig
from pegboard.api.scheduler import CacheStats, SchedulerStats
from pegboard.api.stat_logger_front import FrontContext, TokenBatch
from pegboard_metrics_prometheus.recorder import PrometheusRecorder
from pegboard_metrics_prometheus.settings import Settings

LABELS = {"model_name", "engine"}
WANTED = {
    "vllm:cache_config_info": "gauge",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:engine_sleep_state": "gauge",
    "vllm:external_prefix_cache_hits": "counter",
    "vllm:external_prefix_cache_queries": "counter",
    "vllm:generation_tokens": "counter",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:iteration_tokens_total": "histogram",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:num_preemptions": "counter",
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:num_requests_waiting_by_reason": "gauge",
    "vllm:prefix_cache_hits": "counter",
    "vllm:prefix_cache_queries": "counter",
    "vllm:prompt_tokens": "counter",
    "vllm:prompt_tokens_by_source": "counter",
    "vllm:prompt_tokens_cached": "counter",
    "vllm:request_decode_time_seconds": "histogram",
    "vllm:request_generation_tokens": "histogram",
    "vllm:request_inference_time_seconds": "histogram",
    "vllm:request_max_num_generation_tokens": "histogram",
    "vllm:request_num_preemptions": "histogram",
    "vllm:request_params_max_tokens": "histogram",
    "vllm:request_params_n": "histogram",
    "vllm:request_prefill_kv_computed_tokens": "histogram",
    "vllm:request_prefill_time_seconds": "histogram",
    "vllm:request_prompt_tokens": "histogram",
    "vllm:request_queue_time_seconds": "histogram",
    "vllm:request_success": "counter",
    "vllm:request_time_per_output_token_seconds": "histogram",
    "vllm:time_to_first_token_seconds": "histogram",
}
BUCKETS = {
    "vllm:request_params_n": "1 2 5 10 20",
    "vllm:request_num_preemptions": "1 2 3 4 5 10 20",
    "vllm:request_prompt_tokens": "1 2 5 10 20 50 100 200 500 1000 2000",
    "vllm:iteration_tokens_total": "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384",
    "vllm:e2e_request_latency_seconds": (
        "0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"
    ),
    "vllm:request_queue_time_seconds": (
        "0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"
    ),
    "vllm:time_to_first_token_seconds": (
        "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 "
        "1 2.5 5 7.5 10 20 40 80 160 640 2560"
    ),
    "vllm:inter_token_latency_seconds": (
        "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80"
    ),
    "vllm:request_time_per_output_token_seconds": (
        "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80"
    ),
}
MODEL = '{model_name="$model_name"}[$__rate_interval]'
DASHBOARDS = {
    "the dashboard of vLLM's getting-started example": f"""
        rate(vllm:e2e_request_latency_seconds_bucket{MODEL})
        rate(vllm:e2e_request_latency_seconds_sum{MODEL})
        rate(vllm:e2e_request_latency_seconds_count{MODEL})
        rate(vllm:prompt_tokens_total{MODEL}) rate(vllm:generation_tokens_total{MODEL})
        rate(vllm:inter_token_latency_seconds_bucket{MODEL})
        rate(vllm:inter_token_latency_seconds_sum{MODEL})
        rate(vllm:inter_token_latency_seconds_count{MODEL})
        vllm:num_requests_running vllm:num_requests_waiting vllm:kv_cache_usage_perc
        rate(vllm:time_to_first_token_seconds_bucket{MODEL})
        rate(vllm:time_to_first_token_seconds_sum{MODEL})
        rate(vllm:time_to_first_token_seconds_count{MODEL})
        increase(vllm:request_prompt_tokens_bucket{MODEL})
        increase(vllm:request_generation_tokens_bucket{MODEL})
        sum by(finished_reason) (increase(vllm:request_success_total{MODEL}))
        rate(vllm:request_queue_time_seconds_sum{MODEL})
        rate(vllm:request_prefill_time_seconds_sum{MODEL})
        rate(vllm:request_decode_time_seconds_sum{MODEL})
        rate(vllm:request_max_num_generation_tokens_sum{MODEL})""",
    "performance statistics": """
        vllm:e2e_request_latency_seconds_sum vllm:e2e_request_latency_seconds_count
        vllm:e2e_request_latency_seconds_bucket vllm:time_to_first_token_seconds_bucket
        vllm:time_to_first_token_seconds_sum vllm:time_to_first_token_seconds_count
        vllm:inter_token_latency_seconds_sum vllm:inter_token_latency_seconds_count
        vllm:inter_token_latency_seconds_bucket vllm:prompt_tokens_total
        vllm:generation_tokens_total""",
    "query statistics": """
        vllm:request_success_total vllm:e2e_request_latency_seconds_bucket
        vllm:request_prompt_tokens_bucket vllm:prompt_tokens_total vllm:generation_tokens_total""",
    "service status": """
        vllm:engine_sleep_state{sleep_state="awake"} vllm:time_to_first_token_seconds_bucket
        vllm:num_requests_running vllm:generation_tokens_total
        vllm:request_success_total{finished_reason="error"} vllm:request_success_total""",
    "overview, but for HTTP requests": """
        vllm:request_success_total{finished_reason="error"} vllm:prompt_tokens_total
        vllm:generation_tokens_total vllm:time_to_first_token_seconds_bucket
        vllm:time_to_first_token_seconds_sum vllm:time_to_first_token_seconds_count
        vllm:inter_token_latency_seconds_bucket vllm:inter_token_latency_seconds_sum
        vllm:e2e_request_latency_seconds_bucket vllm:num_requests_running
        vllm:num_requests_waiting_by_reason{reason="deferred"} vllm:kv_cache_usage_perc
        vllm:num_preemptions_total""",
    "the head of KV cache": """
        vllm:kv_cache_usage_perc vllm:prefix_cache_hits_total vllm:prefix_cache_queries_total
        vllm:prompt_tokens_cached_total vllm:prompt_tokens_total vllm:num_preemptions_total
        vllm:num_requests_waiting_by_reason{reason="capacity"} vllm:num_requests_running
        vllm:num_requests_waiting_by_reason{reason="deferred"}""",
}
"""What the dashboards that vLLM publishes ask Prometheus for."""


def opened(model: str = "a/model", **settings: Any) -> PrometheusRecorder:
    config = EngineConfig(model=model, num_gpu_blocks_override=64, block_size=32)
    context = FrontContext(model, config, 64, 2048, 3, Settings(**settings))
    return PrometheusRecorder(context)


def families(recorder: PrometheusRecorder) -> dict[str, Any]:
    return {family.name: family for family in recorder.collect()}


def test_there_are_these_metrics_of_these_kinds_from_the_first_moment() -> None:
    assert {name: found.type for name, found in families(opened()).items()} == WANTED


def test_every_metric_has_the_labels_of_model_and_engine() -> None:
    for name, family in families(opened()).items():
        for sample in family.samples:
            if name != "vllm:cache_config_info":
                assert sample.labels["model_name"] == "a/model", name
                assert set(sample.labels) - LABELS <= {
                    *("le", "finished_reason", "source", "reason", "sleep_state")
                }
            assert sample.labels["engine"] == "3", name


@pytest.mark.parametrize(("name", "bounds"), BUCKETS.items(), ids=BUCKETS)
def test_the_buckets_are_those_that_quantiles_are_made_of(name: str, bounds: str) -> None:
    found = [
        sample.labels["le"]
        for sample in families(opened())[name].samples
        if sample.name.endswith("_bucket")
    ]
    assert [float(bound) for bound in found] == [*map(float, bounds.split()), float("inf")]


@pytest.mark.parametrize("dashboard", DASHBOARDS)
def test_a_published_dashboard_finds_what_it_asks_for(dashboard: str, scrape_text: Any) -> None:
    found = scrape_text(generate_latest(opened().registry).decode())
    series = {(name, value) for name, labels in found.samples for _, value in labels}
    names = {name for name, _ in found.samples}
    asked = re.findall(
        r"(vllm:\w+)(?:\{(?:reason|finished_reason|sleep_state)=\"(\w+)\"\})?",
        DASHBOARDS[dashboard],
    )
    assert len(asked) > 4
    for name, value in asked:
        assert name in names
        assert not value or (name, value) in series


def test_the_settings_of_the_cache_are_labels() -> None:
    (sample,) = families(opened())["vllm:cache_config_info"].samples
    assert sample.value == 1
    told = {key: sample.labels[key] for key in ("block_size", "num_gpu_blocks", "cache_dtype")}
    assert told == {"block_size": "32", "num_gpu_blocks": "64", "cache_dtype": "auto"}
    assert sample.labels["enable_prefix_caching"] == "True"


def test_two_engines_of_one_process_do_not_meet() -> None:
    one, two = opened("one"), opened("two")
    one.tokens(TokenBatch(1, 5, [0.1], [], 3, 0))
    texts = [generate_latest(each.registry).decode() for each in (one, two)]
    assert 'vllm:generation_tokens_total{engine="3",model_name="one"} 5.0' in texts[0]
    assert 'vllm:generation_tokens_total{engine="3",model_name="two"} 0.0' in texts[1]


def test_the_process_is_told_of_unless_it_is_not_wanted() -> None:
    assert "process_resident_memory_bytes" in generate_latest(opened().registry).decode()
    alone = opened(process_metrics=False)
    assert "process_" not in generate_latest(alone.registry).decode()


def test_sources_of_prompt_tokens_never_fall_and_sum_to_the_whole() -> None:
    recorder = opened()
    recorder.tokens(TokenBatch(1, 1, [0.1], [], 100, 60))
    for loaded in (0, 20, 45):
        cache = CacheStats(external_hit_tokens=loaded, external_queried_tokens=50)
        recorder.scheduler(SchedulerStats(total_blocks=4, used_blocks=1, cache=cache))
    samples = families(recorder)["vllm:prompt_tokens_by_source"].samples
    shares = {sample.labels["source"]: sample.value for sample in samples}
    assert shares["local_compute"] == 40 and shares["external_kv_transfer"] == 45
    assert families(recorder)["vllm:kv_cache_usage_perc"].samples[0].value == 0.25


def test_a_served_name_is_the_label_unless_the_settings_have_one() -> None:
    free, fixed = opened(), opened(model_name="mine")
    for recorder in (free, fixed):
        recorder.serve_as("served")
    assert (free.model_name, fixed.model_name) == ("served", "mine")
