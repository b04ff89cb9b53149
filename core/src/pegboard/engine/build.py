"""Putting an engine together: board, model, executor, cache, scheduler, front end."""

from __future__ import annotations

from contextlib import ExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import attrs

from pegboard.api.context import ROLES, ProcessRole
from pegboard.api.executor import Executor
from pegboard.api.kv import KVCacheConfig
from pegboard.api.late import LateSource
from pegboard.api.metrics import MetricSet
from pegboard.api.scheduler_class import SchedulerClass
from pegboard.config.connect import require_connector
from pegboard.config.engine import EngineConfig
from pegboard.config.logits import make_roster
from pegboard.config.model import ResolvedModel, resolve_model
from pegboard.config.plugin_policy import policy_of
from pegboard.engine.choose_executor import make_executor
from pegboard.engine.choose_scheduler import find_scheduler, make_scheduler
from pegboard.engine.connect import connect
from pegboard.engine.core import EngineCore
from pegboard.engine.events import EventSink, open_sink
from pegboard.engine.front import FrontEnd, build_front
from pegboard.engine.late import late_source
from pegboard.engine.llm_engine import LLMEngine
from pegboard.engine.open_watch import decide_observers, open_watch
from pegboard.engine.provenance import announce, used_names
from pegboard.engine.stats import StatSink, open_stats
from pegboard.engine.templates import read_template
from pegboard.errors import ConfigError
from pegboard.hostmemory import release_free_memory
from pegboard.kv.groups import form_groups
from pegboard.kv.sizing import size_cache
from pegboard.logging import get_logger
from pegboard.plugins import Board, load_plugins
from pegboard.plugins.report import Used
from pegboard.scheduler.guard import Connected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["BuiltCore", "BuiltEngine", "assemble", "build_core", "build_engine", "engine_roles"]


@attrs.frozen
class BuiltEngine:
    """An engine and what it was built from."""

    config: EngineConfig
    board: Board
    model: ResolvedModel
    cache: KVCacheConfig
    engine: LLMEngine
    front: FrontEnd
    used: Used
    """What it uses of the board: names by surface."""


@attrs.frozen
class BuiltCore:
    """What plans and computes, without a front end."""

    core: EngineCore
    cache: KVCacheConfig
    used: Used
    metrics: MetricSet
    """What the plugins of this process count."""


def build_engine(
    config: EngineConfig,
    *,
    board: Board | None = None,
    progress: Callable[[int, int], Any] | None = None,
) -> BuiltEngine:
    """Discover, resolve, load, size, warm up.

    `progress` is called with (bytes loaded, bytes in all) while weights stream in. With several
    ranks each loads what the board's plan says, without what the program brought itself. Errors:
    `ConfigError`, `CheckpointError`, `UnsupportedError`, `MissingPluginError`, `SelectionError`,
    `ResourceError`.
    """
    own_template = read_template(config.chat_template)
    if board is None:
        board = load_plugins(policy=policy_of(config), role=engine_roles(config, ROLES))
    elif config.plugins_lock is not None:
        board.check_lock(config.plugins_lock)
    with ExitStack() as undo:
        with board.watched():
            built = _build(config, board, own_template, progress)
            undo.callback(built.engine.close)
        undo.pop_all()
    return built


def _build(
    config: EngineConfig,
    board: Board,
    own_template: str | None,
    progress: Callable[[int, int], Any] | None,
) -> BuiltEngine:
    """All of it, from the plugins of `board`."""
    config = decide_observers(board, config, serving=False)
    model = resolve_model(board, config)
    front = build_front(board, config, model, own_template)
    made = assemble(board, config, model, progress, front.used)
    with ExitStack() as undo:
        undo.callback(made.core.close)
        watch = open_watch(
            board,
            config,
            num_blocks=made.cache.num_blocks,
            max_model_len=model.max_model_len,
        )
        undo.pop_all()
    engine = LLMEngine(made.core, front.inputs, front.tokenizer, config.stream_interval, watch)
    return BuiltEngine(config, board, model, made.cache, engine, front, made.used)


def engine_roles(config: EngineConfig, whole: Iterable[ProcessRole]) -> tuple[ProcessRole, ...]:
    """What a process with an engine is: `whole`, less the worker if ranks have processes of their
    own."""
    alone = config.tensor_parallel_size == 1
    return tuple(role for role in whole if alone or role != "worker")


def assemble(
    board: Board,
    config: EngineConfig,
    model: ResolvedModel,
    progress: Callable[[int, int], Any] | None = None,
    in_front: Used = MappingProxyType({}),
) -> BuiltCore:
    """Load the model, size the cache, join scheduler and executor, and log what runs, with what the
    front end uses, if it is in the same process.

    Nothing stays open if anything is raised.
    """
    if config.kv_transfer_config is not None:  # before any weight is read
        groups = form_groups(model.facts.kv_slots, config.block_size)
        require_connector(board, config.kv_transfer_config, groups)
    release_free_memory()  # before the weights come, so that they can have it
    with ExitStack() as undo:
        events = open_sink(board, config.kv_events_config)  # bad options show before the weights
        undo.callback(events.close)
        stats = open_stats(board, config)
        undo.callback(stats.close)
        executor = make_executor(board, config, model, progress)
        undo.callback(executor.close)
        core, cache = build_core(config, executor, model.max_model_len, board, events, stats=stats)
        undo.callback(core.close)
        release_free_memory()
        used = {**used_names(board, config, model, executor.facts()), **in_front}
        undo.pop_all()
    announce(board, model, used)
    return BuiltCore(core, cache, used, board.metrics)


def build_core(
    config: EngineConfig,
    executor: Executor,
    max_model_len: int,
    board: Board | None = None,
    events: EventSink | None = None,
    *,
    late: LateSource | None = None,
    stats: StatSink | None = None,
) -> tuple[EngineCore, KVCacheConfig]:
    """Load a model through its executor, decide the cache, and join scheduler and executor.

    Without a board there is only the core's own scheduler, and no KV connector. `late` makes
    grammar masks; without it no request has any. Raises `ConfigError` if
    ``config.async_scheduling`` is True and the executor runs one step at a time; the caller closes
    the executor if anything is raised.
    """
    found = find_scheduler(board, config)  # before anything that takes long
    executor.load()
    groups = form_groups(executor.kv_slots(), config.block_size)
    profile = executor.profile()
    release_free_memory()
    cache = size_cache(
        groups, config, profile.cache_bytes(config.gpu_memory_utilization), max_model_len
    )
    log = get_logger("pegboard.engine")
    log.info("cache sized", blocks=cache.num_blocks, max_model_len=max_model_len)
    log.debug("why so many blocks", reason=cache.reason)
    executor.allocate(cache)
    executor.warm_up()
    decided = attrs.evolve(config, max_model_len=max_model_len)
    connected = _connect(config, executor, cache, board)
    with ExitStack() as undo:
        if connected is not None:
            undo.callback(connected.close)
        scheduler = make_scheduler(found, board, decided, cache, connected)
        depth = _steps_in_flight(config, executor, found)
        core = EngineCore(
            scheduler,
            executor,
            events,
            depth=depth,
            late=late_source(late, make_roster(board, config)),
            connected=connected,
            stats=stats,
        )
        undo.pop_all()
    return core, cache


def _connect(
    config: EngineConfig, executor: Executor, cache: KVCacheConfig, board: Board | None
) -> Connected | None:
    """Join both halves of the KV connector, if one is wanted."""
    if config.kv_transfer_config is None:
        return None
    assert board is not None, "a connector is found on the board"
    return connect(board, config.kv_transfer_config, cache, executor.connect())


def _steps_in_flight(config: EngineConfig, executor: Executor, scheduler: SchedulerClass) -> int:
    """2 with async scheduling, else 1; `ConfigError` if it is asked for and cannot be had."""
    if config.async_scheduling is False:
        return 1
    if min(executor.max_in_flight, scheduler.max_in_flight) >= 2:
        return 2
    slow = type(executor).__name__ if executor.max_in_flight < 2 else f"scheduler {scheduler.name}"
    reason = f"{slow} runs one step at a time"
    if config.async_scheduling:
        raise ConfigError(f"async_scheduling=True is not allowed: False or None, since {reason}")
    get_logger("pegboard.engine").info("async scheduling is off", reason=reason)
    return 1
