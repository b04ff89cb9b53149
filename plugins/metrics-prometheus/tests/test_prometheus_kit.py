"""The conformance kits of the plugin's surfaces."""

from __future__ import annotations

from typing import Any

from pegboard.testing.boards import board_of
from pegboard_testkit.endpoint_kit import EndpointKit
from pegboard_testkit.stat_logger_kit import StatLoggerKit


def registered(surface: str, name: str) -> Any:
    return board_of("metrics-prometheus").require(surface, name, wanted_by="its tests")


class TestMetrics(EndpointKit):
    endpoint = registered("endpoint", "metrics")
    public = ("/metrics",)


class TestPrometheus(StatLoggerKit):
    logger = registered("stat_logger", "prometheus")
