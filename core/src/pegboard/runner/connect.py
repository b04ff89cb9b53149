"""Building the worker half of a KV connector, and those of its children."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import torch

from pegboard.api.connector import (
    ConnectorLink,
    KVConnector,
    KVTransferConfig,
    WorkerHalf,
    WorkerHalfContext,
)
from pegboard.api.kv import KVCacheConfig, KVLayout, KVTensors
from pegboard.config.connect import check_layouts, identity_for, require_connector
from pegboard.errors import PluginError
from pegboard.runner.transfers import Worker

if TYPE_CHECKING:
    from pegboard.plugins import Board

__all__ = ["connect_worker", "own_tensors"]


def connect_worker(
    board: Board,
    config: KVTransferConfig,
    cache: KVCacheConfig,
    storage: Mapping[str, KVTensors],
    identity: dict[str, Any],
    device: torch.device,
) -> tuple[Worker, ConnectorLink]:
    """Build the worker half and attach it to the cache's storage, which is by slot key.

    Raises `MissingPluginError`, `UnsupportedError`, `SelectionError` (layouts) and what the
    connector raises for its settings.
    """
    own = own_tensors(cache, storage)
    layouts = [storage[group.slots[0]].layout for group in cache.groups]
    half = _Builder(board, cache, layouts, identity).build(config)
    try:
        handshake = half.attach(own, cache, device)
    except BaseException:
        half.close()
        raise
    connector = require_connector(board, config, cache.groups)
    layers = [tensors.key for tensors in own] if connector.abilities.layerwise else []
    worker = Worker(half, name=config.kv_connector, layers=layers)
    return worker, ConnectorLink(identity, (handshake,))


def own_tensors(cache: KVCacheConfig, storage: Mapping[str, KVTensors]) -> list[KVTensors]:
    """What a worker half is attached to."""
    return [storage[key] for group in cache.groups for key in group.slots if group.slot_bytes()]


@attrs.frozen(eq=False)
class _Builder:
    board: Board
    cache: KVCacheConfig
    layouts: Sequence[KVLayout]
    identity: dict[str, Any]

    def build(self, config: KVTransferConfig) -> WorkerHalf:
        """A connector, or a child of one."""
        connector = require_connector(self.board, config, self.cache.groups)
        check_layouts(connector, self.layouts)
        half = connector.worker.load()(
            WorkerHalfContext(
                config=config,
                identity=identity_for(self.board, self.identity, connector),
                rank=0,
                ranks=1,
                connector=self.build,
                **self.board.handed("connector", connector.name),
            )
        )
        if not isinstance(half, WorkerHalf):
            raise PluginError(
                f"the worker half of KV connector {connector.name!r} is a "
                f"{type(half).__name__}, not a WorkerHalf"
            )
        _need_drop(half, connector)
        return half


def _need_drop(half: WorkerHalf, connector: KVConnector) -> None:
    """Whoever writes outside the core's calls must be able to stop."""
    can = connector.abilities
    if type(half).drop is WorkerHalf.drop and (can.asynchronous or can.layerwise):
        ability = "asynchronous" if can.asynchronous else "layerwise"
        raise PluginError(
            f"the worker half of KV connector {connector.name!r}, {type(half).__name__}, has no "
            f"method 'drop' of its own, which the ability {ability!r} demands"
        )
