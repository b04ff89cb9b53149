"""What is left free when a waiting request is admitted, so that it is not preempted at once."""

from __future__ import annotations

from collections.abc import Sequence

from pegboard.config.engine import EngineConfig
from pegboard.kv import KVManager
from pegboard.scheduler.request import Request

__all__ = ["Room"]


class Room:
    """Blocks that must stay available. A request that is alone may take all."""

    def __init__(self, kv: KVManager, config: EngineConfig) -> None:
        self._kv = kv
        self.watermark = int(config.watermark * kv.pool.total)
        """Blocks that stay available in any case."""
        self._whole_input = config.scheduler_reserve_full_isl

    def any(self, running: Sequence[Request]) -> bool:
        """Enough blocks are available to look for somebody to admit beside these."""
        pool = self._kv.pool
        return not running or not pool.total or pool.available > self.watermark

    def reserve(self, request: Request, stop: int, running: Sequence[Request]) -> int:
        """Blocks to leave beside those for the first `stop` tokens of a request.

        These are the watermark and, unless that is switched off, the rest of the input.
        """
        if not running:
            return 0
        if not self._whole_input:
            return self.watermark
        rest = self._kv.blocks_for(request.known) - self._kv.blocks_for(stop)
        return self.watermark + rest
