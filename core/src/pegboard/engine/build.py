"""Putting an engine together: board, model, executor, cache, scheduler, front end."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import attrs

from pegboard.api.descriptor import LazyRef
from pegboard.api.executor import Executor
from pegboard.api.kv import KVCacheConfig
from pegboard.config.connect import require_connector
from pegboard.config.engine import EngineConfig
from pegboard.config.model import ResolvedModel, resolve_model
from pegboard.config.sources import open_tokenizer
from pegboard.engine.connect import connect
from pegboard.engine.core import EngineCore
from pegboard.engine.inputs import InputProcessor
from pegboard.engine.llm_engine import LLMEngine
from pegboard.hostmemory import release_free_memory
from pegboard.kv.groups import form_groups, size_cache
from pegboard.logging import get_logger
from pegboard.plugins import Board, load_plugins
from pegboard.scheduler import TokenBudgetScheduler
from pegboard.scheduler.guard import Connected
from pegboard.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BuiltEngine", "build_core", "build_engine"]

LOCAL_EXECUTOR = LazyRef("pegboard.runner.local:LocalExecutor")
"""Imported late: it is what brings torch in."""


@attrs.frozen
class BuiltEngine:
    """An engine and what it was built from."""

    config: EngineConfig
    board: Board
    model: ResolvedModel
    cache: KVCacheConfig
    tokenizer: Tokenizer | None
    engine: LLMEngine


def build_engine(
    config: EngineConfig,
    *,
    board: Board | None = None,
    progress: Callable[[int, int], Any] | None = None,
) -> BuiltEngine:
    """Discover, resolve, load, size, warm up.

    `progress` is called with (bytes loaded, bytes in all) while weights stream in. Errors:
    `ConfigError`,
    `CheckpointError`, `UnsupportedError`, `MissingPluginError`, `SelectionError`, `ResourceError`.
    """
    board = board or load_plugins(strict=config.strict_plugins)
    model = resolve_model(board, config)
    if config.kv_transfer_config is not None:  # before any weight is read
        groups = form_groups(model.facts.kv_slots, config.block_size)
        require_connector(board, config.kv_transfer_config, groups)
    tokenizer = load_tokenizer(board, config, model)
    release_free_memory()  # before the weights come, so that they can have it
    executor = LOCAL_EXECUTOR.load()(board, config, model, progress=progress)
    core, cache = build_core(config, executor, model.max_model_len, board=board)
    release_free_memory()
    inputs = InputProcessor(
        encoder=tokenizer,
        vocab_size=model.facts.vocab_size,
        max_model_len=model.max_model_len,
        eos_token_ids=model.eos_token_ids,
        seeds=random.Random(config.seed),
        encoder_problem=model.tokenizer_problem,
    )
    return BuiltEngine(config, board, model, cache, tokenizer, LLMEngine(core, inputs, tokenizer))


def build_core(
    config: EngineConfig, executor: Executor, max_model_len: int, *, board: Board | None = None
) -> tuple[EngineCore, KVCacheConfig]:
    """Load a model through its executor, decide the cache, and join scheduler and executor.

    `board` is needed if ``config.kv_transfer_config`` names a connector.
    """
    executor.load()
    groups = form_groups(executor.kv_slots(), config.block_size)
    profile = executor.profile()
    cache = size_cache(
        groups, config, profile.cache_bytes(config.gpu_memory_utilization), max_model_len
    )
    get_logger("pegboard.engine").info("cache sized", blocks=cache.num_blocks, reason=cache.reason)
    executor.allocate(cache)
    executor.warm_up()
    connected = _connect(config, executor, cache, board)
    scheduler = TokenBudgetScheduler(config, cache, connected)
    return EngineCore(scheduler, executor, connected=connected), cache


def _connect(
    config: EngineConfig, executor: Executor, cache: KVCacheConfig, board: Board | None
) -> Connected | None:
    """Join both halves of the KV connector, if one is wanted."""
    if config.kv_transfer_config is None:
        return None
    assert board is not None, "a connector is found on the board"
    return connect(board, config.kv_transfer_config, cache, executor.connect())


def load_tokenizer(board: Board, config: EngineConfig, model: ResolvedModel) -> Tokenizer | None:
    """The tokeniser of ``config.tokenizer``, else the model's; None, with a warning, if it has
    none."""
    if config.tokenizer is not None:
        return Tokenizer.from_spec(open_tokenizer(board, config.tokenizer))
    if model.tokenizer is None:
        get_logger("pegboard.engine").warning("no tokeniser", reason=model.tokenizer_problem)
        return None
    return Tokenizer.from_spec(model.tokenizer)
