"""The logger keeps the rules of its surface."""

from __future__ import annotations

from pegboard_stats_log import pegboard_stat_loggers
from pegboard_testkit.stat_logger_kit import StatLoggerKit


class TestLog(StatLoggerKit):
    (logger,) = pegboard_stat_loggers()
