"""An `EngineCore` over the toy executor, and what it tells."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pegboard.api.executor import Executor
from pegboard.api.late import LateSource
from pegboard.api.views import EngineOutput, EngineRequest
from pegboard.config.engine import EngineConfig
from pegboard.engine.build import build_core
from pegboard.engine.core import EngineCore
from pegboard.plugins import Board
from pegboard.testing.toy import ToyExecutor
from pegboard.testing.toy_engine import Told

__all__ = ["CoreRun", "ToyCore", "toy_core"]

ToyCore = EngineCore
"""The type of what `toy_core` makes."""


def toy_core(
    overlap: bool | None = True,
    executor: Executor | None = None,
    *,
    late: LateSource | None = None,
    board: Board | None = None,
    **options: Any,
) -> EngineCore:
    """An engine with 64 blocks of 8 tokens for 8 requests of up to 160 tokens, unless `options`
    (fields of `EngineConfig`) say otherwise; `overlap` is ``async_scheduling``. Schedulers by name
    are found on `board`."""
    options = {"num_gpu_blocks_override": 64, "max_num_seqs": 8, "block_size": 8, **options}
    config = EngineConfig(model="toy", async_scheduling=overlap, **options)
    return build_core(config, executor or ToyExecutor(), 160, board, late=late)[0]


class CoreRun:
    """Steps an engine, checks its books after each step, and keeps what it told."""

    def __init__(self, engine: EngineCore, requests: Iterable[EngineRequest] = ()) -> None:
        self.engine = engine
        self.told: dict[str, Told] = {}
        for request in requests:
            self.add(request)

    def add(self, request: EngineRequest) -> None:
        self.engine.add(request)
        self.told[request.request_id] = Told()

    def step(self) -> None:
        self.take(self.engine.step())
        self.engine.scheduler.check()

    def take(self, outputs: Iterable[EngineOutput]) -> None:
        for output in outputs:
            self.told[output.request_id].take(output)
            if output.logprobs is not None:
                assert [entry.ids[0] for entry in output.logprobs] == output.token_ids

    def finish(self) -> dict[str, Told]:
        """Step until nothing is left to do; every block must be back."""
        while self.engine.has_work():
            self.step()
        assert self.engine.stats().used_blocks == 0, "a block is lost"
        return self.told
