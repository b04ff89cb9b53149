"""A line about what the engine does, in Pegboard's log."""

from __future__ import annotations

from pegboard.api.hooks import hookimpl
from pegboard.api.stat_logger import StatLogger
from pegboard_stats_log.settings import Settings

PEGBOARD_API = {"stat_logger": 0}
PEGBOARD_PROCESSES = ("front",)


@hookimpl
def pegboard_settings() -> type[Settings]:
    """The keys of ``plugin_config={"stats-log": …}``."""
    return Settings


@hookimpl
def pegboard_stat_loggers() -> tuple[StatLogger, ...]:
    """The logger ``log``, on wherever an engine serves."""
    return (StatLogger(name="log", observe="pegboard_stats_log.line:LogLine", default=True),)
