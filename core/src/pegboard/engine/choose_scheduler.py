"""Which scheduler plans: the core's own, a registered one, or one named by module path."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from pegboard.api.descriptor import LazyRef
from pegboard.api.kv import KVCacheConfig
from pegboard.api.scheduler import Scheduler, SchedulerClass, SchedulerContext
from pegboard.config.engine import EngineConfig
from pegboard.errors import ConfigError, MissingPluginError, PegboardError, PluginError
from pegboard.plugins import Board
from pegboard.plugins.modules import find_module
from pegboard.scheduler.guard import Connected

__all__ = ["OWN_SCHEDULER", "find_scheduler", "make_scheduler"]

OWN_SCHEDULER = "token-budget"
"""Name of the core's own."""

_OWN = SchedulerClass(
    OWN_SCHEDULER, "pegboard.scheduler:build_scheduler", max_in_flight=2, transfers=True
)
_METHODS = tuple(name for name in vars(Scheduler) if not name.startswith("_"))


def find_scheduler(board: Board | None, config: EngineConfig) -> SchedulerClass:
    """The descriptor of ``config.scheduler_cls``; without a board there is only the core's. Of one
    named by module path it is the least that it can be.

    Raises `MissingPluginError` for a name that nobody registered and a module that is not there,
    `ConfigError` for a module path that the allowlist leaves out or a scheduler that cannot serve a
    KV connector that is wanted.
    """
    wanted = config.scheduler_cls
    found = _OWN if wanted is None or board is None else _named(board, wanted)
    if config.kv_transfer_config is not None and not found.transfers:
        raise ConfigError(
            f"scheduler_cls={wanted!r} is not allowed together with kv_transfer_config: "
            f"scheduler {found.name} does not declare that it serves a KV connector"
        )
    return found


def make_scheduler(
    found: SchedulerClass,
    board: Board | None,
    config: EngineConfig,
    cache: KVCacheConfig,
    connected: Connected | None = None,
) -> Scheduler:
    """Build the scheduler that `find_scheduler` found. `connected` is the KV connector's scheduler
    half, if there is one.

    Raises `PluginError` for one that cannot be imported or that makes something else than a
    scheduler.
    """
    return _build(found, board, partial(SchedulerContext, config, cache, connected=connected))


def _named(board: Board, wanted: str) -> SchedulerClass:
    if ":" not in wanted:
        found: SchedulerClass = board.require(
            "scheduler", wanted, wanted_by=f"scheduler_cls={wanted!r}"
        )
        return found
    module = wanted.partition(":")[0]
    if module not in sys.modules and find_module(module) is None:
        raise MissingPluginError(
            f"scheduler_cls={wanted!r}: module {module!r} is not found; install what provides it"
        )
    if not board.allows_module(wanted):
        raise ConfigError(
            f"scheduler_cls={wanted!r} is not allowed: {board.allowlist.setting} leaves its "
            "distribution out; add it there"
        )
    return SchedulerClass(wanted, wanted)


def _build(
    chosen: SchedulerClass, board: Board | None, make: Callable[..., SchedulerContext]
) -> Scheduler:
    """Load and call the scheduler's maker with ``make(build=…)`` and what is the plugin's own."""
    target = chosen.build

    def build(name: str) -> Scheduler:
        inner = _OWN if board is None else _find_registered(board, name, target)
        return _build(inner, board, make)

    own = {} if board is None else board.handed("scheduler", chosen.name)
    scheduler = _call(target, make(build=build, **own))
    missing = [name for name in _METHODS if not callable(getattr(scheduler, name, None))]
    if missing:
        raise PluginError(
            f"{target} made a {type(scheduler).__name__}, which is no scheduler: it lacks "
            f"{', '.join(missing)}"
        )
    return scheduler  # type: ignore[no-any-return]


def _call(target: LazyRef, context: SchedulerContext) -> Any:
    """Call what `target` names; what goes wrong there is told under its name."""
    maker = target.load()
    if not callable(maker):
        raise PluginError(f"{target} is a {type(maker).__name__}, which makes no scheduler")
    try:
        return maker(context)
    except PegboardError:
        raise
    except Exception as error:
        raise PluginError(f"{target} made no scheduler: {type(error).__name__}: {error}") from error


def _find_registered(board: Board, name: str, wanted_by: LazyRef) -> SchedulerClass:
    found: SchedulerClass = board.require("scheduler", name, wanted_by=str(wanted_by))
    return found
