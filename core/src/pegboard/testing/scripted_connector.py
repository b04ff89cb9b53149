"""The ``scripted`` KV connector: a store in memory that does what a test's script says.

Its settings are ``{"script": Script(...)}``. Engines whose scripts have one `store` share what is
in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import attrs
import msgspec

from pegboard.api.connector import (
    Allocated,
    Finished,
    Keep,
    Later,
    Load,
    Match,
    MatchAnswer,
    Now,
    Pending,
    Piece,
    SchedulerHalf,
    SchedulerHalfContext,
    StepOrder,
    StepView,
    TransferReport,
    WorkerHalf,
    WorkerHalfContext,
)
from pegboard.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from pegboard.api.kv import KVCacheConfig, KVTensors

__all__ = ["Script", "ScriptedScheduler", "ScriptedWorker", "make_scheduler", "make_worker"]

Outcome = Literal["now", "later", "pending"]


@attrs.define
class Script:
    """What the connector has and how it behaves."""

    store: dict[tuple[int, bytes], list[Any]] = attrs.field(factory=dict)
    """By (group, key): the pages of the group's slots."""
    outcomes: Sequence[Outcome] = ("now",)
    """Of the requests in the order in which they are first asked about, over and over. ``pending``
    is followed by ``later``."""
    delay: int = 2
    """Steps until a match is known, a load between steps is over, or a hold is given back."""
    timeout: float = 100.0
    holds: bool = False
    """Saves take `delay` steps, and the blocks are held."""
    keeps: bool = False
    """Blocks of ended requests are kept for `delay` steps."""
    breaks: frozenset[str] = frozenset()
    """Calls that raise. ``started`` is the end of ``start_load``."""
    counts: Counter[str] = attrs.field(factory=Counter)
    """What happened."""

    def called(self, name: str) -> None:
        """Count a call; raise if it is to break."""
        self.counts[name] += 1
        if name in self.breaks:
            raise OSError(f"{name} is scripted to fail")


def _script_of(config: Mapping[str, Any]) -> Script:
    script = config.get("script")
    if not isinstance(script, Script) or len(config) != 1:
        raise ConfigError(
            f"kv_connector_extra_config={config!r}: {{'script': Script(…)}} is wanted"
        )
    return script


class ScriptedScheduler(SchedulerHalf):
    """Knows the whole store, since it lies in the same process."""

    def __init__(self, ctx: SchedulerHalfContext) -> None:
        self._ctx = ctx
        self._script = _script_of(ctx.config.kv_connector_extra_config)
        self._outcomes: dict[str, Outcome] = {}
        self._asked: Counter[str] = Counter()
        self._next = 0
        self._keeps: list[int] = []

    def match(self, question: Match) -> MatchAnswer:
        script = self._script
        script.called("match")
        name, hashes = question.request.request_id, question.request.block_hashes
        found = self._ctx.longest(hashes, question.limit, self._has) - question.computed
        if found <= 0:
            return Now(0)
        outcome = self._outcome(name)
        self._asked[name] += 1
        if outcome == "pending" and self._asked[name] <= script.delay:
            script.counts["pending"] += 1
            return Pending()
        return Now(found) if outcome == "now" else Later(found, script.timeout)

    def allocated(self, what: Allocated) -> None:
        self._script.called("allocated")
        kind = "now" if what.load.now else "later"
        self._script.counts[kind] += 1

    def step(self, view: StepView) -> StepOrder:
        script = self._script
        script.called("step")
        new = view.filled  # again, if it is there already: equal keys must mean equal content
        keeps, self._keeps = self._keeps, []
        metadata = {
            "step": view.step_id,
            "loads": msgspec.to_builtins(view.loads, builtin_types=(bytes,)),
            "saves": msgspec.to_builtins(new, builtin_types=(bytes,)),
            "keeps": keeps,
        }
        holds = tuple(piece.block for piece in new) if script.holds else ()
        script.counts["holds"] += len(holds)
        return StepOrder(metadata, holds, script.timeout)

    def finished(self, what: Finished) -> Keep | None:
        self._script.called("finished")
        self._outcomes.pop(what.request.request_id, None)
        self._asked.pop(what.request.request_id, None)
        if not self._script.keeps or what.reason != "length":
            return None
        self._keeps.append(what.keep_id)
        self._script.counts["keeps"] += 1
        return Keep(self._script.timeout, {"keep": what.keep_id})

    def report(self, report: TransferReport) -> None:
        self._script.called("report")

    def stats(self) -> Mapping[str, float]:
        return {"scripted_blocks": float(len(self._script.store))}

    def reset(self, reason: str) -> None:
        self._script.called("reset")
        self._script.store.clear()

    def close(self) -> None:
        self._script.called("close")

    def _has(self, group: int, key: bytes) -> bool:
        return (group, key) in self._script.store

    def _outcome(self, name: str) -> Outcome:
        if name not in self._outcomes:
            self._outcomes[name] = self._script.outcomes[self._next % len(self._script.outcomes)]
            self._next += 1
        return self._outcomes[name]


class _Clocked(msgspec.Struct):
    """Something that is over after some more polls."""

    left: int
    load: Load | None = None
    saves: Sequence[Piece] = ()
    step: int = -1
    keep: int = -1


class ScriptedWorker(WorkerHalf):
    """Copies pages."""

    def __init__(self, ctx: WorkerHalfContext) -> None:
        self._script = _script_of(ctx.config.kv_connector_extra_config)
        self._slots: dict[int, list[KVTensors]] = {}
        self._saves: list[Piece] = []
        self._step = -1
        self._clocked: list[_Clocked] = []

    def attach(self, kv: Sequence[KVTensors], cache: KVCacheConfig, device: torch.device) -> Any:
        self._slots.clear()
        for tensors in kv:
            self._slots.setdefault(tensors.group, []).append(tensors)
        return {"slots": len(kv)}

    def start_load(self, metadata: Any) -> None:
        self._script.called("start_load")
        self._step = metadata["step"]
        self._saves = msgspec.convert(metadata["saves"], list[Piece])
        for load in msgspec.convert(metadata["loads"], list[Load]):
            if load.now:
                self._load(load)
            else:
                self._clocked.append(_Clocked(self._script.delay, load=load))
        for keep in metadata["keeps"]:
            self._clocked.append(_Clocked(self._script.delay, keep=keep))
        self._script.called("started")

    def drop(self, load_id: int) -> bool:
        self._script.called("drop")
        self._clocked = [
            item for item in self._clocked if item.load is None or item.load.load_id != load_id
        ]
        return True

    def wait_save(self) -> None:
        self._script.called("wait_save")
        if self._script.holds and self._saves:
            self._clocked.append(_Clocked(self._script.delay, saves=self._saves, step=self._step))
        else:
            self._save(self._saves)

    def poll(self) -> TransferReport:
        self._script.called("poll")
        report = TransferReport(stats={"scripted_polls": 1.0})
        for item in self._clocked:
            item.left -= 1
        over = [item for item in self._clocked if item.left <= 0]
        self._clocked = [item for item in self._clocked if item.left > 0]
        for item in over:
            self._save(item.saves)
            if item.load is not None:
                self._load(item.load)
                report.received.append(item.load.load_id)
            if item.keep >= 0:
                report.sent.append(item.keep)
            if item.step >= 0:
                report.saved.append(item.step)
        return report

    def reset(self, reason: str) -> None:
        self._script.called("worker reset")

    def close(self) -> None:
        self._script.called("worker close")

    def _load(self, load: Load) -> None:
        for piece in load.pieces:
            pages = self._script.store[piece.group, piece.key]
            for tensors, page in zip(self._slots[piece.group], pages, strict=True):
                tensors.page(piece.block).copy_(page)
            self._script.counts["loaded"] += 1

    def _save(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            pages = [tensors.page(piece.block).clone() for tensors in self._slots[piece.group]]
            self._script.store[piece.group, piece.key] = pages
            self._script.counts["saved"] += 1


def make_scheduler(ctx: SchedulerHalfContext) -> ScriptedScheduler:
    """Entry of the descriptor."""
    return ScriptedScheduler(ctx)


def make_worker(ctx: WorkerHalfContext) -> ScriptedWorker:
    """Entry of the descriptor."""
    return ScriptedWorker(ctx)
