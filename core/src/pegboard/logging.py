"""Logging: human on a terminal, JSON lines otherwise, always to stderr.

Everything goes through the standard library's tree under ``pegboard``, so a program that embeds the
engine routes it as it likes. `setup_logging` is for programs of our own (the command line, the
server): it adds one handler, whose formatter imports structlog with the first record. Nothing is
configured or logged on import.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from pegboard.errors import ConfigError

__all__ = ["LEVEL_VARIABLE", "Logger", "get_logger", "setup_logging"]

LEVEL_VARIABLE = "PEGBOARD_LOG_LEVEL"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_ROOT = "pegboard"
_FIELDS = "pegboard_fields"


class Logger:
    """A logger of events with named values: ``log.info("model loaded", seconds=1.2)``.

    A message that its level hides costs one check.
    """

    __slots__ = ("_bound", "_log")

    def __init__(self, log: logging.Logger, bound: Mapping[str, Any]) -> None:
        self._log = log
        self._bound = bound

    def bind(self, **fields: Any) -> Logger:
        """A logger that adds these fields to every event."""
        return Logger(self._log, {**self._bound, **fields})

    def debug(self, event: str, **fields: Any) -> None:
        """Detail for whoever hunts a fault."""
        self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """The normal course of things."""
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Something the operator should know; the work goes on."""
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Something failed."""
        self._emit(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """Something failed, with the traceback of the exception being handled."""
        self._emit(logging.ERROR, event, fields, exc_info=True)

    def _emit(
        self, level: int, event: str, fields: Mapping[str, Any], exc_info: bool = False
    ) -> None:
        if self._log.isEnabledFor(level):
            extra = {_FIELDS: {**self._bound, **fields}}
            self._log.log(level, "%s", event, extra=extra, exc_info=exc_info, stacklevel=3)


def get_logger(name: str) -> Logger:
    """The logger of a module;

    pass ``__name__``. Names outside the engine's tree are put under it.
    """
    inside = name == _ROOT or name.startswith(f"{_ROOT}.")
    return Logger(logging.getLogger(name if inside else f"{_ROOT}.{name}"), {})


def setup_logging(
    *,
    environ: Mapping[str, str] | None = None,
    stream: TextIO | None = None,
    level: str = "INFO",
) -> None:
    """Send the engine's log to `stream` (default stderr).

    The level is that of ``PEGBOARD_LOG_LEVEL``, where that is set, else `level`. Calling it again
    replaces the earlier set-up. Raises `ConfigError` for an unknown level.
    """
    stream = sys.stderr if stream is None else stream
    level = _level(os.environ if environ is None else environ, level)
    root = logging.getLogger(_ROOT)
    for handler in [h for h in root.handlers if isinstance(h, _Handler)]:
        root.removeHandler(handler)
    root.addHandler(_Handler(stream))
    root.setLevel(level)
    root.propagate = False


def _level(environ: Mapping[str, str], default: str) -> str:
    text = environ.get(LEVEL_VARIABLE, default).strip().upper()
    if text not in LEVELS:
        raise ConfigError(
            f"{LEVEL_VARIABLE} is {environ[LEVEL_VARIABLE]!r}; allowed are {', '.join(LEVELS)}"
        )
    return text


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]  # not generic at run time in 3.10
    """Our handler, so that a second set-up finds the first."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.setFormatter(_LazyFormatter(human=stream.isatty()))


class _LazyFormatter(logging.Formatter):
    """Imports structlog when the first record arrives."""

    def __init__(self, *, human: bool) -> None:
        super().__init__()
        self._human = human
        self._render: Callable[[logging.LogRecord], str] | None = None

    def format(self, record: logging.LogRecord) -> str:
        if self._render is None:
            self._render = _structlog_formatter(self._human).format
        return self._render(record)


def _structlog_formatter(human: bool) -> logging.Formatter:
    import structlog

    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        _add_fields,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if human else "iso", utc=not human),
    ]
    last: list[Any] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if human:
        plain = structlog.dev.plain_traceback
        last.append(structlog.dev.ConsoleRenderer(exception_formatter=plain))
    else:
        last += [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ]
    return structlog.stdlib.ProcessorFormatter(processors=last, foreign_pre_chain=shared)


def _add_fields(_: Any, __: str, event: dict[str, Any]) -> dict[str, Any]:
    """Processor: the named values of our own loggers."""
    event.update(getattr(event["_record"], _FIELDS, {}))
    return event
