"""The logger keeps the rules of its surface."""

from __future__ import annotations

from pegboard_metrics_prometheus import pegboard_stat_loggers
from pegboard_testkit.stat_logger_kit import StatLoggerKit


class TestPrometheus(StatLoggerKit):
    (logger,) = pegboard_stat_loggers()
