"""Metrics that plugins declare, and the namespace of op versions."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pegboard.api.metrics import Counter, Gauge, Histogram, MetricSet, PluginMetrics
from pegboard.errors import DuplicateError, PluginError

SOURCE = """
from pegboard.api.hooks import hookimpl
from pegboard.api.ops import OpVersion
from pegboard.api.platform import Platform

PEGBOARD_API = {"platform": 0, "ops": 0}


@hookimpl
def pegboard_platforms(ctx):
    ctx.metrics.counter("asked", "How often the hook was asked").add(2)
    return [Platform(name="own", probe="a:b", runtime="a:b")]


@hookimpl
def pegboard_ops():
    return [OpVersion("odd.rope", "rope", "a:b")]
"""


def test_the_board_keeps_what_plugins_declare(site: Any) -> None:
    site.add_source(SOURCE)
    board = site.load()
    (metric,) = board.metrics
    assert (metric.name, metric.kind, metric.value) == ("pegboard_plugin_odd_asked", "counter", 2)
    handed = board.handed("platform", "own")["metrics"]
    handed.counter("asked", "How often the hook was asked").add()
    assert board.metrics.get("pegboard_plugin_odd_asked").value == 3
    assert handed.gauge("depth", "Of something").name == "pegboard_plugin_odd_depth"
    assert len(board.metrics) == 2 and not len(site.load("").metrics)


def test_a_plugin_that_fails_leaves_no_metric(site: Any) -> None:
    site.add_source(SOURCE.replace("odd.rope", "other.rope"))
    board = site.load()
    assert board.plugins[0].state == "failed"
    assert "op versions of this plugin are called 'odd', a dot" in board.plugins[0].reason
    assert not list(board.metrics)


def test_another_plugins_metric_cannot_be_taken(site: Any) -> None:
    site.add_source(SOURCE)
    source = SOURCE.replace("odd.rope", "ODD.rope").replace('name="own"', 'name="other"')
    site.add("second", {"plugins:ODD": "second"}, files={"second.py": source})
    first, second = sorted(site.load().plugins, key=lambda record: record.id)
    assert (second.id, second.state, first.state) == ("odd", "failed", "ready")
    assert "plugin_odd_asked of plugin 'odd' is taken by a counter of plugin 'ODD'" in second.reason


def test_a_declaration_again_is_the_same_metric_and_another_is_refused() -> None:
    metrics = PluginMetrics("a-b", MetricSet())
    one = metrics.counter("n", "Things")
    assert metrics.counter("n", "Things") is one
    for declare in (
        lambda: metrics.counter("n", "Other things"),
        lambda: metrics.gauge("n", "Things"),
        lambda: metrics.histogram("n", "Things", [1, 2]),
    ):
        with pytest.raises(DuplicateError, match="pegboard_plugin_a_b_n of plugin 'a-b' is taken"):
            declare()


def test_two_ids_that_are_spelt_alike_cannot_share_a_metric() -> None:
    shared = MetricSet()
    PluginMetrics("a-b", shared).counter("n", "Things")
    with pytest.raises(
        DuplicateError, match=r"of plugin 'a\.b' is taken by a counter of plugin 'a-b'"
    ):
        PluginMetrics("a.b", shared).counter("n", "Things")


@pytest.mark.parametrize("name", ["", "N", "1n", "a-b", "a b", "_n"])
def test_a_name_is_checked(name: str) -> None:
    with pytest.raises(PluginError, match="lower case"):
        PluginMetrics("x").gauge(name, "Things")


def test_what_metrics_count() -> None:
    metrics = PluginMetrics()
    counter: Counter = metrics.counter("c", "")
    counter.add()
    counter.add(1.5)
    with pytest.raises(PluginError, match="cannot fall"):
        counter.add(-1)
    gauge: Gauge = metrics.gauge("g", "")
    gauge.set(3)
    gauge.add(-5)
    histogram: Histogram = metrics.histogram("h", "", [1, 2.5])
    for value in (0.5, 1, 2, 9):
        histogram.observe(value)
    assert (counter.value, gauge.value, histogram.sum, histogram.count) == (2.5, -2, 12.5, 4)
    assert histogram.buckets == (1.0, 2.5) and histogram.cumulative() == [2, 3, 4]


@pytest.mark.parametrize("buckets", [[], [1, 1], [2, 1]])
def test_buckets_rise(buckets: list[float]) -> None:
    with pytest.raises(PluginError, match="must rise"):
        PluginMetrics().histogram("h", "", buckets)


def test_no_count_is_lost_among_threads() -> None:
    counter = PluginMetrics().counter("c", "")
    threads = [
        threading.Thread(target=lambda: [counter.add() for _ in range(2000)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.value == 8000
