"""Which scheduler plans: the core's own, a registered one, or one named by module path."""

from __future__ import annotations

from pegboard.api.descriptor import LazyRef
from pegboard.api.kv import KVCacheConfig
from pegboard.api.scheduler import Scheduler, SchedulerContext
from pegboard.config.engine import EngineConfig
from pegboard.errors import ConfigError, PluginError
from pegboard.plugins import VARIABLE, Board

__all__ = ["make_scheduler"]

_OWN = LazyRef("pegboard.scheduler:build_scheduler")
_METHODS = tuple(name for name in vars(Scheduler) if not name.startswith("_"))


def make_scheduler(board: Board | None, config: EngineConfig, cache: KVCacheConfig) -> Scheduler:
    """Build the scheduler of ``config.scheduler_cls``; without a board there is only the core's.

    Raises `MissingPluginError` for a name that nobody registered, `ConfigError` for a module path
    that the allowlist leaves out, `PluginError` for one that cannot be imported or that makes
    something else than a scheduler.
    """
    if config.scheduler_cls is None or board is None:
        return _build(_OWN, None, config, cache)
    return _build(_find(board, config.scheduler_cls), board, config, cache)


def _find(board: Board, wanted: str) -> LazyRef:
    if ":" not in wanted:
        descriptor = board.require("scheduler", wanted, wanted_by=f"scheduler_cls={wanted!r}")
        found: LazyRef = descriptor.build
        return found
    if not board.allows_module(wanted):
        raise ConfigError(
            f"scheduler_cls={wanted!r} is not allowed: {board.allowlist.setting} leaves its "
            f"distribution out; add it to {VARIABLE}"
        )
    return LazyRef(wanted)


def _build(
    target: LazyRef, board: Board | None, config: EngineConfig, cache: KVCacheConfig
) -> Scheduler:
    def build(name: str) -> Scheduler:
        inner = _OWN if board is None else _find_registered(board, name, target)
        return _build(inner, board, config, cache)

    scheduler = target.load()(SchedulerContext(config, cache, build))
    missing = [name for name in _METHODS if not callable(getattr(scheduler, name, None))]
    if missing:
        raise PluginError(
            f"{target} made a {type(scheduler).__name__}, which is no scheduler: it lacks "
            f"{', '.join(missing)}"
        )
    return scheduler  # type: ignore[no-any-return]


def _find_registered(board: Board, name: str, wanted_by: LazyRef) -> LazyRef:
    found: LazyRef = board.require("scheduler", name, wanted_by=str(wanted_by)).build
    return found
