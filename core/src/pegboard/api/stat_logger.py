"""Surface *stat_logger*: who is told what the engine does, and what becomes of requests.

Chosen with the engine option ``stat_loggers``, a list of names; where none is given, an engine that
serves (`pegboard.AsyncLLM`) has those that are on by default, a `pegboard.LLM` none. Without a
logger no figures are made.

A logger has one half or both. The engine half is called by `EngineCore`, in the engine process,
from its one thread, after each step that had rows. The front half sees requests as users see them,
see `pegboard.api.stat_logger_front`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from pegboard.api._parts import late_exports
from pegboard.api.descriptor import LazyRef, lazy_ref
from pegboard.errors import PluginError

if TYPE_CHECKING:
    from pegboard.api.stat_logger_engine import StatLoggerContext, StatRecorder, StepStats

__all__ = ["StatLogger", "StatLoggerContext", "StatRecorder", "StepStats"]

if not TYPE_CHECKING:
    __getattr__ = late_exports(__name__, __all__, "stat_logger_engine")


def _optional_ref(given: LazyRef | str | None) -> LazyRef | None:
    return None if given is None else lazy_ref(given)


@attrs.frozen
class StatLogger:
    """Descriptor of a stat logger. Raises `PluginError` if it has no half at all."""

    name: str
    open: LazyRef | None = attrs.field(default=None, converter=_optional_ref)
    """The engine half: a callable ``(StatLoggerContext) -> StatRecorder``, called before the model
    is loaded. Raises `ConfigError` for settings that are not allowed. None: there is none."""
    observe: LazyRef | None = attrs.field(default=None, converter=_optional_ref)
    """The front half: a callable ``(FrontContext) -> FrontRecorder``, called when the engine is
    ready. None: there is none."""
    default: bool = False
    """On where an engine serves and `stat_loggers` is not given. Its plugin must load in the front
    end."""

    def __attrs_post_init__(self) -> None:
        if self.open is None and self.observe is None:
            raise PluginError(
                f"stat logger {self.name!r} needs open, observe or both, to be told anything"
            )

    def claims(self) -> tuple[str, ...]:
        return ()
