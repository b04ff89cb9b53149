"""Which executor runs the steps: one of this process, one of several ranks, or another by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pegboard.api.executor import Executor, ExecutorContext
from pegboard.api.executor_class import ExecutorClass
from pegboard.config.engine import EngineConfig
from pegboard.config.model import ResolvedModel
from pegboard.errors import ConfigError, PegboardError, PluginError
from pegboard.plugins import Board

__all__ = ["make_executor", "usual_executor"]

LOCAL, RANKS = "local", "ranks"
"""The core's own."""
_MEMBERS = tuple(name for name in vars(Executor) if not name.startswith("_"))


def make_executor(
    board: Board,
    config: EngineConfig,
    model: ResolvedModel,
    progress: Callable[[int, int], Any] | None = None,
) -> Executor:
    """Build the executor of ``config.distributed_executor_backend``; None means the core's.

    Raises `MissingPluginError` for a name that nobody registered, `ConfigError` for one that does
    not serve as many ranks, `PluginError` for one that fails or makes something else.
    """

    def build(name: str) -> Executor:
        found = _find(board, config, name)
        own = board.handed("executor", found.name)
        return _build(found, ExecutorContext(config, model, board, build, progress, **own))

    return build(config.distributed_executor_backend or usual_executor(config))


def usual_executor(config: EngineConfig) -> str:
    """The core's own, for as many ranks."""
    return LOCAL if config.tensor_parallel_size == 1 else RANKS


def _find(board: Board, config: EngineConfig, name: str) -> ExecutorClass:
    wanted = f"distributed_executor_backend={name!r}"
    found: ExecutorClass = board.require("executor", name, wanted_by=wanted)
    ranks = config.tensor_parallel_size
    if (found.ranks == "one" and ranks > 1) or (found.ranks == "several" and ranks == 1):
        raise ConfigError(
            f"{wanted} is not allowed with tensor_parallel_size={ranks}: this executor serves "
            f"{found.ranks}"
        )
    return found


def _build(found: ExecutorClass, context: ExecutorContext) -> Executor:
    maker = found.build.load()
    try:
        executor = maker(context)
    except PegboardError:
        raise
    except Exception as error:
        raise PluginError(
            f"{found.build} made no executor: {type(error).__name__}: {error}"
        ) from error
    missing = [name for name in _MEMBERS if not hasattr(executor, name)]
    if missing:
        raise PluginError(
            f"{found.build} made a {type(executor).__name__}, which is no executor: it lacks "
            f"{', '.join(missing)}"
        )
    return executor  # type: ignore[no-any-return]
