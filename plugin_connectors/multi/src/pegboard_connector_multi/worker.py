"""The worker half: calls the connectors' worker halves in order and merges what they report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from pegboard.api.connector import (
    FailedBlock,
    Load,
    TransferReport,
    WorkerHalf,
    WorkerHalfContext,
)
from pegboard_connector_multi.guard import Guard
from pegboard_connector_multi.messages import OWNERS, ChildOrder, Orders, Shared, Told, pack
from pegboard_connector_multi.settings import Settings

if TYPE_CHECKING:
    import torch

    from pegboard.api.kv import KVCacheConfig, KVTensors

__all__ = ["MultiWorker"]


@attrs.define(eq=False)
class _Child:
    half: WorkerHalf
    guard: Guard
    active: bool = False
    """Inside a step."""

    def call(self, method: str, call: Callable[[], Any]) -> bool:
        """Call the half; False if it broke down."""
        return self.guard.call(method, lambda: (call(), True)[1], False)


class _Shares:
    """Who still needs which blocks."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[set[int], float]] = {}

    def add(self, name: int, shared: Shared) -> None:
        """Several connectors need blocks, up to a time."""
        self._left[name] = (set(shared.children), time.monotonic() + shared.timeout)

    def done(self, child: int, names: Sequence[int]) -> list[int]:
        """One connector needs these no longer; those that nobody needs now."""
        free = []
        for name in names:
            children, _ = self._left.get(name, (set(), 0.0))
            if child not in children:
                continue
            children.discard(child)
            if not children:
                del self._left[name]
                free.append(name)
        return free

    def expire(self) -> None:
        """Forget those whose time is up; the engine has released them itself."""
        now = time.monotonic()
        for name in [name for name, (_, until) in self._left.items() if until < now]:
            del self._left[name]


class MultiWorker(WorkerHalf):
    """Half of the connector ``multi``."""

    def __init__(self, ctx: WorkerHalfContext) -> None:
        settings = Settings.read(ctx.config.kv_connector_extra_config)
        self._children = [
            _Child(ctx.connector(config), Guard(place, config.kv_connector, settings.isolate))
            for place, config in enumerate(settings.connectors)
        ]
        self._keys: list[str] = []
        self._rows = False
        self._lost: list[Load] = []
        """Loads of this step that fail because a connector broke down."""
        self._owners: dict[int, _Child] = {}  # by load, who was told to bring it
        self._holds, self._keeps = _Shares(), _Shares()

    def attach(self, kv: Sequence[KVTensors], cache: KVCacheConfig, device: torch.device) -> Any:
        self._keys = [tensors.key for tensors in kv]
        return [child.half.attach(kv, cache, device) for child in self._children]

    def start_load(self, metadata: Any) -> None:
        orders = msgspec.convert(metadata, Orders)
        self._rows = orders.rows
        self._lost += orders.lost
        if orders.holds is not None:
            self._holds.add(orders.step_id, orders.holds)
        for keep_id, shared in orders.keeps.items():
            self._keeps.add(keep_id, shared)
        for child, order in zip(self._children, orders.children, strict=True):
            if not order.broken:
                self._owners.update((load.load_id, child) for load in order.loads)
            child.active = self._start(child, order)
            self._lost += [] if child.active else order.loads

        while len(self._owners) > OWNERS:
            del self._owners[next(iter(self._owners))]

    def drop(self, load_id: int) -> bool:
        child = self._owners.get(load_id)
        if child is None:  # nobody was told of it
            return True
        return child.guard.call("drop", partial(child.half.drop, load_id), False)

    def _start(self, child: _Child, order: ChildOrder) -> bool:
        """Begin a connector's step; False if it broke down."""
        if order.broken:
            return False
        started = child.call("start_load", partial(child.half.start_load, order.metadata))
        if started and self._layerwise(child.half):
            for key in self._keys:
                started = started and child.call("wait_layer", partial(child.half.wait_layer, key))
        return started

    def _layerwise(self, half: WorkerHalf) -> bool:
        """Its layers are to be told of in this step."""
        kind = type(half)
        own = (kind.wait_layer, kind.save_layer) != (WorkerHalf.wait_layer, WorkerHalf.save_layer)
        return own and self._rows

    def wait_save(self) -> None:
        for child in self._children:
            if not child.active:
                continue
            child.active = False
            for key in self._keys if self._layerwise(child.half) else ():
                child.call("save_layer", partial(child.half.save_layer, key))
            child.call("wait_save", child.half.wait_save)

    def poll(self) -> TransferReport:
        reports = [self._poll(child) for child in self._children]
        self._holds.expire()
        self._keeps.expire()
        merged = TransferReport()
        for place, report in enumerate(reports):
            merged.received += report.received
            merged.failed += report.failed
            merged.astray += report.astray
            merged.sent += self._keeps.done(place, report.sent)
            merged.saved += self._holds.done(place, report.saved)
            merged.stats.update({f"multi_{place}_{n}": v for n, v in report.stats.items()})
        for load in self._lost:
            merged.failed += [FailedBlock(load.load_id, p.group, p.block) for p in load.pieces]
            merged.received += [] if load.now else [load.load_id]
            merged.astray += [] if self.drop(load.load_id) else [load.load_id]
        self._lost = []
        if not all(report.empty and not report.stats for report in reports):
            merged.extra = pack(Told(reports))
        return merged

    def _poll(self, child: _Child) -> TransferReport:
        """What a connector reports."""
        report = child.guard.call("poll", child.half.poll, TransferReport())
        if not isinstance(report, TransferReport):
            raise child.guard.breach("poll", report, "a TransferReport")
        return report

    def detach(self) -> None:
        for child in self._children:
            child.call("detach", child.half.detach)

    def reset(self, reason: str) -> None:
        for child in self._children:
            child.call("reset", partial(child.half.reset, reason))

    def close(self) -> None:
        for child in self._children:
            child.call("close", child.half.close)
