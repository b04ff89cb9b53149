"""Which stat loggers and which tracer an engine has, and their opening in the front end."""

from __future__ import annotations

from contextlib import ExitStack

import attrs

from pegboard.api.stat_logger import StatLogger
from pegboard.api.stat_logger_front import FrontContext, FrontRecorder
from pegboard.api.tracer import RequestTracer, Tracer, TracerContext
from pegboard.config.engine import EngineConfig
from pegboard.engine.observe import NullWatch, ObserverWatch, Watch
from pegboard.errors import SelectionError
from pegboard.plugins import Board

__all__ = ["choose_tracer", "decide_observers", "engine_half", "open_watch", "used_observers"]


def decide_observers(board: Board, config: EngineConfig, *, serving: bool) -> EngineConfig:
    """The settings with the loggers and the tracer that are meant.

    Raises `MissingPluginError` if `otlp_traces_endpoint` is given and no tracer is loaded, or one
    is named that is not, and `SelectionError` if there are several and none is named.
    """
    names = config.stat_loggers
    if names is None:
        found = board.registry("stat_logger") if serving else ()
        names = tuple(logger.name for logger in found if logger.default)
    tracer = choose_tracer(board, config)
    return attrs.evolve(config, stat_loggers=names, tracer=None if tracer is None else tracer.name)


def choose_tracer(board: Board, config: EngineConfig) -> Tracer | None:
    """The one that is named, or the only one there is if spans are wanted; raises as
    `decide_observers`."""
    if config.tracer is not None:
        named: Tracer = board.require("tracer", config.tracer, wanted_by="tracer")
        return named
    if config.otlp_traces_endpoint is None:
        return None
    registry = board.require_any("tracer", wanted_by="otlp_traces_endpoint")
    if len(registry) > 1:
        raise SelectionError(
            "several tracers are loaded; name one as tracer: " + ", ".join(registry.names())
        )
    only: Tracer = next(iter(registry))
    return only


def engine_half(board: Board, config: EngineConfig) -> EngineConfig:
    """The settings for a process that has the engine alone, whose plugins may be others: without
    the loggers that are only for this one."""
    loggers = board.registry("stat_logger")
    known = {name: loggers.get(name) for name in config.stat_loggers or ()}
    names = [name for name, found in known.items() if found is None or found.open is not None]
    return attrs.evolve(config, stat_loggers=names, tracer=None, otlp_traces_endpoint=None)


def used_observers(config: EngineConfig) -> dict[str, tuple[str, ...]]:
    """Names by surface of what was decided."""
    tracers = () if config.tracer is None else (config.tracer,)
    return {"stat_logger": config.stat_loggers or (), "tracer": tracers}


def open_watch(
    board: Board,
    config: EngineConfig,
    *,
    num_blocks: int,
    max_model_len: int,
) -> Watch:
    """The front halves of the loggers that are decided, and the tracer, opened.

    Raises what opening raises; those that are open are closed then.
    """
    recorders: dict[str, FrontRecorder] = {}
    tracers: dict[str, RequestTracer] = {}
    with ExitStack() as undo:
        for name in config.stat_loggers or ():
            found: StatLogger | None = board.registry("stat_logger").get(name)
            if found is None or found.observe is None:
                continue
            context = FrontContext(
                config.model,
                config,
                num_blocks,
                max_model_len,
                **board.handed("stat_logger", name),
            )
            recorders[name] = found.observe.load()(context)
            undo.callback(recorders[name].close)
        tracer = choose_tracer(board, config)
        if tracer is not None:
            tracers[tracer.name] = tracer.open.load()(
                TracerContext(
                    config.model,
                    config.otlp_traces_endpoint,
                    **board.handed("tracer", tracer.name),
                )
            )
        undo.pop_all()
    return ObserverWatch(recorders, tracers) if recorders or tracers else NullWatch()
