"""The toy model over real storage: ids in the tensors that a connector saves and loads.

Every number of every page stands for the token, the layer and the side (key or value) that it
belongs to, and all groups share the same memory, so that a connector that forgets a layer, swaps
two blocks or writes to the wrong place is found out in the next step.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

import attrs
import msgspec
import numpy as np
import torch

from pegboard.api.connector import (
    ConnectorLink,
    FailedBlock,
    Load,
    Piece,
    TransferReport,
)
from pegboard.api.executor import Pending
from pegboard.api.kv import (
    ChunkedLocalSpec,
    KVCacheConfig,
    KVLayout,
    KVSpec,
    KVTensors,
    LatentSpec,
    RecurrentSpec,
    SlidingWindowSpec,
)
from pegboard.api.step import BlockCopy, LateInputs, StepPlan, StepResult
from pegboard.api.transfer_config import KVTransferConfig
from pegboard.runner.connect import connect_worker
from pegboard.runner.storage import allocate_storage, copy_blocks
from pegboard.runner.transfers import Worker
from pegboard.testing.toy import VOCABULARY, ToyExecutor
from pegboard.testing.toy_cache import ToyRow

if TYPE_CHECKING:
    from pegboard.plugins import Board

__all__ = ["Faults", "PageCache", "PagedToyExecutor"]

_PAGED = KVLayout("toy", ("block", "kv", "token", "head", "dim"))
_LATENT = KVLayout("toy-latent", ("block", "token", "dim"))
Floats = np.ndarray[Any, np.dtype[np.float32]]
_PLANE = 128
"""Numbers per layer, more than there are ids."""
GARBAGE = -1.0


class PageCache:
    """Storage of all groups, and what rows must find in it."""

    def __init__(self, cache: KVCacheConfig, storage: Mapping[str, KVTensors]) -> None:
        self.storage = storage
        self._groups = [(group, [storage[key] for key in group.slots]) for group in cache.groups]
        self._views = [
            [] if isinstance(group.spec, RecurrentSpec) else [_by_token(s) for s in slots]
            for group, slots in self._groups
        ]

    @classmethod
    def layouts(cls, cache: KVCacheConfig) -> list[KVLayout]:
        """Of the groups."""
        return [_LATENT if isinstance(g.spec, LatentSpec) else _PAGED for g in cache.groups]

    def holds_state(self, group: int) -> bool:
        return isinstance(self._groups[group][0].spec, RecurrentSpec)

    def copy(self, copy: BlockCopy) -> None:
        assert 0 not in (copy.source, copy.target), "the null block is copied"
        copy_blocks([copy], self.storage.values())

    def recall(self, row: ToyRow, start: int) -> None:
        """Check the recurrent states that a step begins from."""
        for group, slots in self._groups:
            if start and isinstance(group.spec, RecurrentSpec):
                block = row.tables[group.index][(start - 1) // group.block_size]
                for layer, tensors in enumerate(slots):
                    _check_state(tensors, block, row.ids[:start], layer)

    def write(self, row: ToyRow, start: int, stop: int) -> None:
        """Store tokens ``start`` to ``stop``."""
        assert stop <= len(row.ids), f"tokens up to {stop} planned, {len(row.ids)} known"
        for group, slots in self._groups:
            table, size = row.tables[group.index], group.block_size
            if isinstance(group.spec, RecurrentSpec):
                for length in _lengths(group.spec, start, stop, size):
                    for layer, tensors in enumerate(slots):
                        _write_state(tensors, table[(length - 1) // size], row.ids[:length], layer)
                continue
            blocks, places = _places(table, start, stop, size)
            assert blocks.all(), "the null block is written"
            for layer, view in enumerate(self._views[group.index]):
                view[blocks, places] = _codes(row.ids[start:stop], layer, view)

    def verify(self, slot: int, row: ToyRow, start: int, stop: int) -> None:
        """Everything that these tokens attend to is what the row's own tokens would have stored."""
        for group, _ in self._groups:
            if isinstance(group.spec, RecurrentSpec):
                continue
            first = _first(group.spec, start)
            blocks, places = _places(row.tables[group.index], first, stop, group.block_size)
            for layer, view in enumerate(self._views[group.index]):
                wrong = view[blocks, places] != _codes(row.ids[first:stop], layer, view)
                assert not wrong.any(), (
                    f"slot {slot}, group {group.index}, layer {layer}: wrong content from "
                    f"token {first + int(wrong.reshape(len(blocks), -1).any(1).argmax())} on"
                )

    def spoil(self, group: int, block: int) -> None:
        """Overwrite one block with what no row stores."""
        for tensors in self._groups[group][1]:
            for state in tensors.states.values():
                state[block].fill_(GARBAGE)
            if not tensors.states:
                tensors.page(block).fill_(GARBAGE)


def _by_token(tensors: KVTensors) -> Floats:
    """A slot's storage as ``[block, token, …]``: whatever is stored of one token."""
    data: Floats = tensors.data.numpy()
    return data if isinstance(tensors.spec, LatentSpec) else data.swapaxes(1, 2)


def _places(table: list[int], start: int, stop: int, size: int) -> tuple[Any, Any]:
    """Block and place inside it of each token."""
    positions = np.arange(start, stop)
    return np.asarray(table)[positions // size], positions % size


def _codes(ids: Sequence[int], layer: int, view: Floats) -> Floats:
    """What stands for ids: another number per layer and side (keys are 0, values 1)."""
    codes = np.asarray(ids, np.float32).reshape(-1, *[1] * (view.ndim - 2))
    codes = codes + _PLANE * (2 * layer + 1)
    if view.ndim == 3:
        return codes
    return codes + _PLANE * np.arange(2, dtype=np.float32).reshape(1, 2, 1, 1)


def _first(spec: KVSpec, position: int) -> int:
    """The first token that the one at `position` attends to."""
    if isinstance(spec, SlidingWindowSpec):
        return max(0, position - (spec.window - 1))
    if isinstance(spec, ChunkedLocalSpec):
        return position - position % spec.chunk
    return 0


def _lengths(spec: RecurrentSpec, start: int, stop: int, size: int) -> list[int]:
    """Lengths after which a step leaves a state."""
    inner = [n for n in range(start + 1, stop) if n % size == 0 and spec.cache == "all"]
    return [*inner, stop]


def _state_code(ids: Sequence[int], layer: int) -> int:
    """Small enough to be exact in every dtype."""
    return crc32(array("q", ids).tobytes(), layer) % 251


def _write_state(tensors: KVTensors, block: int, ids: Sequence[int], layer: int) -> None:
    assert block != 0, "the null block is written"
    for number, state in enumerate(tensors.states.values()):
        state[block].fill_(_state_code(ids, 2 * layer + number))


def _check_state(tensors: KVTensors, block: int, ids: Sequence[int], layer: int) -> None:
    for number, (name, state) in enumerate(tensors.states.items()):
        wanted = _state_code(ids, 2 * layer + number)
        assert (state[block] == wanted).all(), (
            f"group {tensors.group}, layer {layer}: block {block} has another {name} than that "
            f"after {len(ids)} tokens"
        )


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
