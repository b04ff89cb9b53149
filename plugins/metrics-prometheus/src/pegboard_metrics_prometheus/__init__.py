"""Metrics in Prometheus form for Pegboard."""

from __future__ import annotations

from pegboard.api.endpoint import Endpoint
from pegboard.api.hooks import hookimpl
from pegboard.api.stat_logger import StatLogger
from pegboard_metrics_prometheus.settings import Settings

PEGBOARD_API = {"endpoint": 0, "stat_logger": 0}
PEGBOARD_PROCESSES = ("front",)


@hookimpl
def pegboard_settings() -> type[Settings]:
    """The keys of ``plugin_config={"metrics-prometheus": …}``."""
    return Settings


@hookimpl
def pegboard_stat_loggers() -> tuple[StatLogger, ...]:
    """The logger ``prometheus``, on wherever an engine serves."""
    observe = "pegboard_metrics_prometheus.recorder:PrometheusRecorder"
    return (StatLogger(name="prometheus", observe=observe, default=True),)


@hookimpl
def pegboard_endpoints() -> tuple[Endpoint, ...]:
    """``GET /metrics``."""
    return (Endpoint(name="metrics", routes="pegboard_metrics_prometheus.routes:routes"),)
