"""Building the scheduler half of a KV connector, and those of its children."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from pegboard.api.connector import (
    ConnectorLink,
    KVTransferConfig,
    SchedulerHalf,
    SchedulerHalfContext,
)
from pegboard.api.kv import KVCacheConfig
from pegboard.config.connect import identity_for, require_connector
from pegboard.errors import PluginError
from pegboard.kv import KVManager
from pegboard.scheduler.guard import Connected

if TYPE_CHECKING:
    from pegboard.plugins import Board

__all__ = ["connect"]


def connect(
    board: Board, config: KVTransferConfig, cache: KVCacheConfig, link: ConnectorLink
) -> Connected:
    """Find the connector and build its scheduler half.

    Raises `MissingPluginError`, `UnsupportedError` and what the connector raises for its settings.
    """
    connector = require_connector(board, config, cache.groups)
    half = _Builder(board, cache, link).build(config, link.handshakes)
    return Connected(half, config, connector.abilities)


@attrs.frozen(eq=False)
class _Builder:
    board: Board
    cache: KVCacheConfig
    link: ConnectorLink

    def build(self, config: KVTransferConfig, handshakes: tuple[Any, ...]) -> SchedulerHalf:
        """A connector, or a child of one."""
        connector = require_connector(self.board, config, self.cache.groups)
        books = KVManager(KVCacheConfig(self.cache.groups, num_blocks=1)).outside
        longest: Callable[[Sequence[bytes], int, Callable[[int, bytes], bool]], int] = books.longest
        half = connector.scheduler.load()(
            SchedulerHalfContext(
                config=config,
                groups=self.cache.groups,
                unit=books.unit,
                border=books.border,
                identity=identity_for(self.board, self.link.identity, connector),
                handshakes=handshakes,
                longest=longest,
                connector=self.build,
                **self.board.handed("connector", connector.name),
            )
        )
        if not isinstance(half, SchedulerHalf):
            raise PluginError(
                f"the scheduler half of KV connector {connector.name!r} is a "
                f"{type(half).__name__}, not a SchedulerHalf"
            )
        return half
