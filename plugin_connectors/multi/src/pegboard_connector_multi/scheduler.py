"""The scheduler half: asks the connectors in order, shows all of them every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import attrs
import msgspec

from pegboard.api.connector import (
    Allocated,
    Finished,
    Keep,
    KVTransferConfig,
    Later,
    Load,
    Match,
    MatchAnswer,
    Now,
    Pending,
    SchedulerHalf,
    SchedulerHalfContext,
    StepOrder,
    StepView,
    StoreEvent,
    TransferReport,
)
from pegboard_connector_multi.guard import Guard
from pegboard_connector_multi.messages import OWNERS, ChildOrder, Orders, Shared, Told, pack
from pegboard_connector_multi.settings import Settings

__all__ = ["MultiScheduler"]


@attrs.frozen(eq=False)
class _Child:
    half: SchedulerHalf
    config: KVTransferConfig
    guard: Guard

    @property
    def place(self) -> int:
        return self.guard.place


class MultiScheduler(SchedulerHalf):
    """Half of the connector ``multi``."""

    def __init__(self, ctx: SchedulerHalfContext) -> None:
        settings = Settings.read(ctx.config.kv_connector_extra_config)
        self._border = ctx.border
        self._children = []
        for place, config in enumerate(settings.connectors):
            handshakes = tuple(handshake[place] for handshake in ctx.handshakes)
            guard = Guard(place, config.kv_connector, settings.isolate)
            half = ctx.connector(config, handshakes)
            self._children.append(_Child(half, config, guard))
        self._winners: dict[str, _Child] = {}  # by request, who answered last
        self._owners: dict[int, int] = {}  # by load, the place of who brings it
        self._keeps: dict[int, Shared] = {}  # not yet told to the workers
        self._missed: dict[int, tuple[int, ...]] = {}  # by place, drops that broke down with a step

    # Loading

    def match(self, question: Match) -> MatchAnswer:
        for child in self._children:
            if not child.config.loads:
                continue
            answer = self._ask(child, question)
            if isinstance(answer, Pending) or self._useful(answer.tokens, question):
                self._winners[question.request.request_id] = child
                return answer
        return Now(0)

    def _ask(self, child: _Child, question: Match) -> MatchAnswer:
        nothing: MatchAnswer = Now(0)
        answer = child.guard.call("match", lambda: child.half.match(question), nothing)
        if not isinstance(answer, (Pending, Now, Later)):
            raise child.guard.breach("match", answer, "Pending, Now or Later")
        return answer

    def _useful(self, tokens: int, question: Match) -> bool:
        """Something is left of the answer once it is rounded down to a border."""
        end = min(question.computed + tokens, question.limit)
        return end // self._border * self._border > question.computed

    def allocated(self, what: Allocated) -> None:
        self._assign(what.load)
        child = self._winners[what.load.request_id]
        child.guard.call("allocated", lambda: child.half.allocated(what), None)

    def _assign(self, load: Load) -> bool:
        """The load belongs to who answered; False if that is not known."""
        if load.load_id not in self._owners and load.request_id in self._winners:
            self._owners[load.load_id] = self._winners[load.request_id].place
            if len(self._owners) > OWNERS:
                del self._owners[next(iter(self._owners))]
        return load.load_id in self._owners

    def _own(self, child: _Child, load_id: int) -> bool:
        return self._owners.get(load_id) == child.place

    # Steps

    def step(self, view: StepView) -> StepOrder:
        lost = [load for load in view.loads if not self._assign(load)]
        parts, orders = [], []
        for child in self._children:
            loads = tuple(load for load in view.loads if self._own(child, load.load_id))
            order = self._step(child, view, loads)
            part = ChildOrder(None, list(loads), broken=True)
            if order is not None:
                part = ChildOrder(order.metadata, list(loads))
            parts.append(part)
            orders.append(order or StepOrder())
        holds = tuple(dict.fromkeys(block for order in orders for block in order.holds))
        holders = [place for place, order in enumerate(orders) if order.holds]
        timeout = max((orders[place].timeout for place in holders), default=0.0)
        keeps, self._keeps = self._keeps, {}
        shared = Shared(holders, timeout) if holders else None
        metadata = Orders(view.step_id, bool(view.request_ids), parts, lost, shared, keeps)
        return StepOrder(pack(metadata), holds, timeout) if holds else StepOrder(pack(metadata))

    def _step(self, child: _Child, view: StepView, loads: tuple[Load, ...]) -> StepOrder | None:
        """A connector's order, from its own view of the step; None if it breaks down."""
        dropped = tuple(load_id for load_id in view.dropped if self._own(child, load_id))
        own = msgspec.structs.replace(
            view,
            loads=loads,
            filled=view.filled if child.config.saves else (),
            dropped=self._missed.pop(child.place, ()) + dropped,
        )
        order: StepOrder | None = child.guard.call("step", lambda: child.half.step(own), None)
        if order is None:
            self._missed[child.place] = (*own.dropped, *(load.load_id for load in loads))
        if order is not None and not isinstance(order, StepOrder):
            raise child.guard.breach("step", order, "a StepOrder")
        return order

    # Ends

    def finished(self, what: Finished) -> Keep | None:
        self._winners.pop(what.request.request_id, None)
        keeps = {child.place: self._finished(child, what) for child in self._children}
        kept = {place: keep for place, keep in keeps.items() if keep is not None}
        if not kept:
            return None
        timeout = max(keep.timeout for keep in kept.values())
        self._keeps[what.keep_id] = Shared(list(kept), timeout)
        params = [keep.params for keep in kept.values() if keep.params is not None]
        merged = {name: value for part in reversed(params) for name, value in part.items()}
        return Keep(timeout, merged if params else None)

    def _finished(self, child: _Child, what: Finished) -> Keep | None:
        keep: Keep | None = child.guard.call("finished", lambda: child.half.finished(what), None)
        if keep is not None and not isinstance(keep, Keep):
            raise child.guard.breach("finished", keep, "Keep or None")
        return keep

    # Reports

    def report(self, report: TransferReport) -> None:
        told = None if report.extra is None else msgspec.convert(report.extra, Told).reports
        for child in self._children:
            raw = TransferReport() if told is None else told[child.place]
            own = TransferReport(
                received=[n for n in report.received if self._own(child, n)],
                failed=[bad for bad in report.failed if self._own(child, bad.load_id)],
                sent=raw.sent,
                saved=raw.saved,
                stats=raw.stats,
                extra=raw.extra,
            )
            child.guard.call("report", partial(child.half.report, own), None)
        for load_id in report.received:
            self._owners.pop(load_id, None)

    # The rest

    def events(self) -> Sequence[StoreEvent]:
        nothing: Sequence[StoreEvent] = ()
        told: list[StoreEvent] = []
        for child in self._children:
            told += child.guard.call("events", child.half.events, nothing)
        return told

    def stats(self) -> Mapping[str, float]:
        nothing: Mapping[str, float] = {}
        return {
            f"multi_{child.place}_{name}": value
            for child in self._children
            for name, value in child.guard.call("stats", child.half.stats, nothing).items()
        }

    def reset(self, reason: str) -> None:
        for child in self._children:
            child.guard.call("reset", partial(child.half.reset, reason), None)

    def close(self) -> None:
        for child in self._children:
            child.guard.call("close", child.half.close, None)
