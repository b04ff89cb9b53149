"""The conformance kits of the plugin's surfaces."""

from __future__ import annotations

from pegboard.testing.boards import board_of
from pegboard_testkit.endpoint_kit import EndpointKit
from pegboard_testkit.stat_logger_kit import StatLoggerKit

BOARD = board_of("metrics-prometheus")


class TestRoute(EndpointKit):
    endpoint = BOARD.require("endpoint", "metrics", wanted_by="its tests")
    public = ("/metrics",)


class TestLogger(StatLoggerKit):
    logger = BOARD.require("stat_logger", "prometheus", wanted_by="its tests")
