"""The conformance kit of stat loggers."""

from __future__ import annotations

from pegboard.testing.boards import board_of
from pegboard_testkit.stat_logger_kit import StatLoggerKit


class TestLog(StatLoggerKit):
    logger = board_of("stats-log").require("stat_logger", "log", wanted_by="its tests")
