"""``GET /metrics``, without a server."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from pegboard import EngineConfig, SamplingParams
from pegboard.api.endpoint import EndpointContext
from pegboard.api.metrics import MetricReading, MetricSet, PluginMetrics
from pegboard.api.stat_logger_front import FrontContext
from pegboard.errors import EngineDeadError
from pegboard_metrics_prometheus.recorder import PrometheusRecorder
from pegboard_metrics_prometheus.routes import routes
from pegboard_metrics_prometheus.settings import Settings

OPEN = "application/openmetrics-text; version=1.0.0"


class Engine:
    """As much of an engine as the route needs."""

    def __init__(self, *, recorder: bool = True, dead: bool = False) -> None:
        config = EngineConfig(model="a/model")
        found = PrometheusRecorder(FrontContext("a/model", config, 8, 64))
        self.recorders = {"prometheus": found} if recorder else {}
        self.board = SimpleNamespace(metrics=MetricSet())
        self._dead = dead
        counts = PluginMetrics("odd", self.board.metrics)
        counts.counter("turns", "Turns of the odd plugin").add(3)
        counts.histogram("sizes", "Sizes of it", [1, 10]).observe(4)

    async def plugin_metrics(self) -> dict[str, list[MetricReading]]:
        if self._dead:
            raise EngineDeadError("it was killed")
        theirs = MetricReading("pegboard_plugin_odd_turns", "counter", "Turns", "odd", 5)
        return {"front": self.board.metrics.readings(), "engine": [theirs]}


def ask(engine: Any, accept: str = "", **settings: Any) -> Any:
    server = SimpleNamespace(names=("served", "also"))
    (route,) = routes(EndpointContext(engine, server, Settings(**settings)))
    assert (route.method, route.path) == ("GET", "/metrics")
    request: Any = SimpleNamespace(headers={"accept": accept})
    return asyncio.run(route.handler(request)), route


def test_the_answer_is_prometheus_text_with_the_served_name(scrape_text: Any) -> None:
    response, route = ask(Engine())
    assert response.headers["content-type"].startswith("text/plain; version=")
    found = scrape_text(response.body.decode())
    assert found("num_requests_running") == 0
    assert found.models - {""} == {"served"} and route.public


def test_a_client_that_knows_openmetrics_gets_them() -> None:
    response, _ = ask(Engine(), OPEN)
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    found = {family.name for family in text_string_to_metric_families(response.body.decode())}
    assert {"vllm:generation_tokens", "pegboard_plugin_odd_turns"} <= found


def test_what_plugins_count_is_told_by_process(scrape_text: Any) -> None:
    found = scrape_text(ask(Engine())[0].body.decode()).samples
    turns = {
        dict(labels)["process"]: value
        for (name, labels), value in found.items()
        if name == "pegboard_plugin_odd_turns_total"
    }
    assert turns == {"front": 3, "engine": 5}
    labels = {"plugin": "odd", "process": "front", "le": "10.0"}
    assert found["pegboard_plugin_odd_sizes_bucket", frozenset(labels.items())] == 1


@pytest.mark.parametrize("faults", [{"dead": True}, {"recorder": False}])
def test_a_dead_engine_or_one_without_the_logger_leaves_the_rest(
    faults: dict[str, bool], scrape_text: Any
) -> None:
    found = scrape_text(ask(Engine(**faults))[0].body.decode()).samples
    assert any(name == "pegboard_plugin_odd_turns_total" for name, _ in found)
    running = any(name == "vllm:num_requests_running" for name, _ in found)
    assert running is ("recorder" not in faults)


def test_the_route_can_be_kept_behind_the_key() -> None:
    assert not ask(Engine(), public=False)[1].public


def test_a_running_engine_is_asked(serving: Any, scrape_text: Any) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    before = serving.scrape()("generation_tokens_total")

    async def work() -> Any:
        async for _ in serving.engine.generate([5, 6], params):
            pass
        (route,) = routes(EndpointContext(serving.engine, SimpleNamespace(names=("m",))))
        return await route.handler(SimpleNamespace(headers={}))  # type: ignore[arg-type]

    found = scrape_text(serving.run(work()).body.decode())
    assert found("generation_tokens_total") - before == 3 and found.models - {""} == {"m"}
