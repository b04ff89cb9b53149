"""The toy executor over real storage, and what may go wrong between worker and scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import msgspec
import torch

from pegboard.api.connector import (
    ConnectorLink,
    FailedBlock,
    KVTransferConfig,
    Load,
    Piece,
    TransferReport,
)
from pegboard.api.executor import Pending
from pegboard.api.kv import KVCacheConfig, KVSpec
from pegboard.api.step import LateInputs, StepPlan, StepResult
from pegboard.runner.connect import connect_worker
from pegboard.runner.storage import allocate_storage
from pegboard.runner.transfers import Worker
from pegboard.testing.toy import VOCABULARY, ToyExecutor
from pegboard.testing.toy_pages import PageCache

if TYPE_CHECKING:
    from pegboard.plugins import Board

__all__ = ["Faults", "PagedToyExecutor"]


@attrs.define
class Faults:
    """What goes wrong between the worker half and the scheduler."""

    spoils: Callable[[Load, Piece], bool] = lambda load, piece: False
    """Pieces that are not loaded: garbage is written and a failure reported in their place. Asked
    more than once, so it must not change its mind."""
    distort: Callable[[TransferReport], TransferReport] = lambda report: report
    """What becomes of each report on its way."""


class PagedToyExecutor(ToyExecutor):
    """`ToyExecutor` with storage that a KV connector can reach.

    A row that reads a block which failed to load computes garbage, as a model would: it samples a
    wrong token.
    """

    def __init__(
        self,
        board: Board,
        config: KVTransferConfig,
        specs: Sequence[KVSpec] = (),
        *,
        poison: int | None = None,
        faults: Faults | None = None,
    ) -> None:
        super().__init__(poison=poison, specs=specs)
        self.faults = faults or Faults()
        self.spoiled = 0
        """Pieces that were spoiled."""
        self.wrong_tokens = 0
        """Tokens sampled from garbage."""
        self.loads = 0
        """Loads that the workers were told of."""
        self._board = board
        self._config = config
        self._worker: Worker | None = None
        self._waiting: dict[int, Load] = {}  # `Later` loads that are not over

        self._misled: set[int] = set()  # slots that read garbage

    def allocate(self, cache: KVCacheConfig) -> None:
        layouts = PageCache.layouts(cache)
        storage = allocate_storage(self.kv_slots(), cache, layouts, torch.device("cpu"))
        self._kv_config = cache
        self._cache = self._pages = PageCache(cache, storage)

    def connect(self) -> ConnectorLink:
        """Attach the worker half to the cache."""
        identity = {"model": "toy", "specs": [str(spec) for spec in self._specs]}
        storage, device = self._pages.storage, torch.device("cpu")
        self._worker, link = connect_worker(
            self._board, self._config, self._kv_config, storage, identity, device
        )
        return link

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
        super().close()

    def execute(self, plan: StepPlan) -> Pending:
        worker = self._worker
        assert worker is not None, "connect() comes first"
        self._apply(plan)
        self._misled -= {*plan.freed_slots, *(new.slot for new in plan.new_rows)}
        for copy in plan.copies:
            self._pages.copy(copy)
        plan = _as_sent(plan)
        worker.begin(plan)
        problems = self._forward(plan, worker)
        report = worker.end(plan)
        if report is not None:
            report = self.faults.distort(self._spoil(plan, report))
        self._judge(plan, problems, report)
        self._count(plan)
        return _PagedPending(self, plan, report)

    def _forward(self, plan: StepPlan, worker: Worker) -> dict[int, AssertionError]:
        """Read and write everything; what was found wrong, by slot."""
        rows = {
            slot: (self._rows[slot], start, start + count)
            for slot, start, count in zip(plan.slots, plan.starts, plan.counts, strict=True)
        }
        for key in self._pages.storage if rows else ():
            worker.before_layer(key)
        self._spoil_now(plan)
        problems: dict[int, AssertionError] = {}
        for slot, (row, start, _) in rows.items():
            try:
                self._pages.recall(row, start)
            except AssertionError as error:
                problems[slot] = error
        for row, start, stop in rows.values():
            self._pages.write(row, start, stop)
        for slot, (row, start, stop) in rows.items():
            try:
                self._pages.verify(slot, row, start, stop)
            except AssertionError as error:
                problems.setdefault(slot, error)
        for key in self._pages.storage if rows else ():
            worker.after_layer(key)
        return problems

    def _spoil_now(self, plan: StepPlan) -> None:
        """`Now` loads are in place: undo those that are to fail."""
        for load in plan.connector.loads if plan.connector is not None else ():
            self.loads += 1
            if not load.now:
                self._waiting[load.load_id] = load
                continue
            for piece in load.pieces:
                if self.faults.spoils(load, piece):
                    self._pages.spoil(piece.group, piece.block)

    def _spoil(self, plan: StepPlan, report: TransferReport) -> TransferReport:
        """Add the failures of spoiled pieces."""
        over = [load for load in plan.connector.loads if load.now] if plan.connector else []
        over += [self._waiting.pop(n) for n in report.received if n in self._waiting]
        for load in over:
            for piece in load.pieces:
                if not self.faults.spoils(load, piece):
                    continue
                self.spoiled += 1
                if not load.now:
                    self._pages.spoil(piece.group, piece.block)
                report.failed.append(FailedBlock(load.load_id, piece.group, piece.block))
        return report

    def _judge(
        self, plan: StepPlan, problems: Mapping[int, AssertionError], report: TransferReport | None
    ) -> None:
        """Only rows that read what failed to load may have found wrong content."""
        bad = {(f.group, f.block) for f in (report.failed if report is not None else ())}
        for slot, problem in problems.items():
            tables = enumerate(self._rows[slot].tables)
            reads_bad = any((group, block) in bad for group, table in tables for block in table)
            if not reads_bad and slot not in self._misled:
                raise problem
            self._misled.add(slot)

    def _sample_row(self, slot: int, row: Any, stop: int, result: StepResult) -> None:
        super()._sample_row(slot, row, stop, result)
        if slot in self._misled:
            self.wrong_tokens += 1
            row.ids[-1] = result.token_ids[-1][0] = (row.ids[-1] + 1) % VOCABULARY


class _PagedPending:
    """`api.executor.Pending` with a report."""

    def __init__(
        self, executor: PagedToyExecutor, plan: StepPlan, report: TransferReport | None
    ) -> None:
        self._executor = executor
        self._plan = plan
        self._report = report
        self._result: StepResult | None = None

    def sample(self, late: LateInputs) -> None:
        self._result = self._executor.sample(self._plan)

    def result(self) -> StepResult:
        assert self._result is not None, "the step was not sampled"
        self._result.transfers = self._report
        return self._result


def _as_sent(plan: StepPlan) -> StepPlan:
    """The plan as another process would get it: the metadata as msgpack brings it."""
    step = plan.connector
    if step is None:
        return plan
    metadata = msgspec.msgpack.decode(msgspec.msgpack.encode(step.metadata), strict=True)
    sent = msgspec.structs.replace(step, metadata=metadata)
    return msgspec.structs.replace(plan, connector=sent)
