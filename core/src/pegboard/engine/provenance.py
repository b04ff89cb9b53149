"""What one engine uses of the board, and the line that says so at its start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pegboard.api.checkpoint import PLAIN_TYPES
from pegboard.config.alias import AliasedCheckpoint
from pegboard.config.engine import EngineConfig
from pegboard.config.model import ResolvedModel
from pegboard.engine.choose_executor import usual_executor
from pegboard.engine.choose_scheduler import OWN_SCHEDULER
from pegboard.engine.events import choose_publisher
from pegboard.logging import get_logger
from pegboard.plugins import Board
from pegboard.plugins.report import Used, provided

__all__ = ["announce", "used_names"]

_PLAIN = "plain"


def used_names(
    board: Board, config: EngineConfig, model: ResolvedModel, facts: Mapping[str, Any]
) -> Used:
    """Names by surface; `facts` are those of the engine's executor, after it is warmed up."""
    events = config.kv_events_config
    publisher = choose_publisher(board, events).name if events and events.active else None
    transfer = config.kv_transfer_config
    checkpoint = model.checkpoint
    alias = checkpoint.alias if isinstance(checkpoint, AliasedCheckpoint) else None
    found: dict[str, Iterable[str | None]] = {
        "alias": (alias,),
        "attention": (part for names in facts["attention"] for part in names.split("+")),
        "checkpoint": (checkpoint.kind,),
        "connector": () if transfer is None else _connectors(board, transfer),
        "events": (publisher,),
        "executor": (config.distributed_executor_backend or usual_executor(config),),
        "logits": config.logits_processors,
        "model": (model.family.name,),
        "ops": (name for name in facts["ops"].values() if name != _PLAIN),
        "platform": (facts["platform"],),
        "quant": _formats(board, config, model),
        "scheduler": (config.scheduler_cls or OWN_SCHEDULER,),
        "stat_logger": config.stat_loggers or (),
        "tracer": (config.tracer,),
    }
    unique = {
        surface: tuple(dict.fromkeys(filter(None, names))) for surface, names in found.items()
    }
    return {surface: names for surface, names in unique.items() if names}


def announce(board: Board, model: ResolvedModel, used: Used) -> None:
    """Log, in one line, what runs and who provides it."""
    words = {surface: provided(board, surface, names) for surface, names in used.items()}
    family = words.pop("model")
    get_logger("pegboard.engine").info(
        "engine ready", path=model.path, architecture=model.architecture, family=family, **words
    )


def _formats(board: Board, config: EngineConfig, model: ResolvedModel) -> Iterator[str]:
    """Of the user's choice, of the checkpoint's configuration and of the types of its tensors."""
    keys = model.checkpoint.config.get("quantization_config")
    claims = [config.quantization and f"method:{config.quantization}", config.quantization]
    if isinstance(keys, Mapping):
        claims.append(f"method:{keys.get('quant_method')}")
    if config.load_format != "dummy":
        types = {tensor.stored_type for tensor in model.checkpoint.tensors.values()}
        claims += [f"type:{name}" for name in sorted(types - PLAIN_TYPES.keys())]
    for claim in claims:
        found = board.registry("quant").get(claim) if claim else None
        if found is not None:
            yield found.name


def _connectors(board: Board, config: Any) -> Iterator[str]:
    """The connector, and those that its own settings name."""
    yield config.kv_connector
    yield from _named(board, config.kv_connector_extra_config)


def _named(board: Board, settings: Any) -> Iterator[str]:
    if isinstance(settings, Mapping):
        name = settings.get("kv_connector")
        if isinstance(name, str) and name in board.registry("connector"):
            yield name
        settings = settings.values()
    elif not isinstance(settings, (list, tuple)):
        return
    for item in settings:
        yield from _named(board, item)
