"""The KV connector's place in the scheduler.

The scheduler asks `look` before it starts a request, and tells what happened; `step` hands the
connector's orders to a plan, `take` brings the workers' report of a step into the books. A request
whose load goes on between steps is in a room of its own (`Status.LOADING`); afterwards it waits
with references on what was loaded, like a child whose parent has computed the prompt.

`NoTransfers` stands in where there is no connector.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING

from pegboard.api.connector import (
    Allocated,
    ConnectorStep,
    Finished,
    Later,
    Load,
    Match,
    Pending,
    TransferReport,
)
from pegboard.api.step import StepResult
from pegboard.api.views import EngineOutput
from pegboard.kv import Beginning, Block, Fork
from pegboard.scheduler.draft import Record
from pegboard.scheduler.guard import Connected
from pegboard.scheduler.loads import Flight, HoldBook, LoadBook
from pegboard.scheduler.news import News
from pegboard.scheduler.no_transfers import NoTransfers
from pegboard.scheduler.request import Request, Status
from pegboard.scheduler.results import make_end
from pegboard.scheduler.views import blocks_view, request_view

if TYPE_CHECKING:
    from pegboard.scheduler.books import Books

__all__ = ["Transfers"]


class Transfers(NoTransfers):
    """Books of everything that comes through a connector."""

    def __init__(self, connected: Connected, books: Books, watermark: int = 0) -> None:
        """`watermark` blocks are left free beside a load while requests run."""
        self._connector = connected
        self._books = books
        self._kv = books.kv
        self._outside = books.kv.outside
        self._watermark = watermark
        self._clock = connected.clock
        self._loads = LoadBook(self._clock)
        self._keeps = HoldBook(self._clock)
        self._saves = HoldBook(self._clock)
        self._lost = HoldBook(self._clock)
        """Blocks of loads that were given up, but to which a worker may still write."""
        self._counts: dict[str, float] = {}
        self._serial = 0
        self._offer: Flight | None = None
        self._asked: set[Request] = set()
        """Live requests that the connector was asked about."""
        self._barred: set[Request] = set()
        """Live requests whose load failed: they compute the rest themselves."""
        self._reset: str | None = None
        self._news = News()

    @property
    def saves(self) -> bool:
        return self._connector.config.saves and self._outside.possible

    @property
    def busy(self) -> bool:
        flying = self._loads or self._keeps or self._saves or self._lost
        return bool(flying or self._news.urgent)

    # A request wants to start

    def look(self, request: Request, given: Beginning) -> Beginning | bool:
        limit = self._limit(request, given)
        if limit <= given.tokens:
            return given
        hashes = self._outside.hashes(request.kv, limit)
        question = Match(request_view(request, hashes), given.tokens, limit)
        answer = self._connector.match(question)
        self._count_question(request, given)
        if isinstance(answer, Pending):
            self._books.waiting.set_aside(request)
            self._news.pending = True
            return True
        border = self._outside.border
        tokens = min(given.tokens + answer.tokens, limit) // border * border
        if tokens <= given.tokens:
            return given
        reserve = self._watermark if self._books.running else 0
        begun = self._outside.begin(request.kv, tokens, reserve)
        if begun is None:  # no room: others will give some, or it starts with what it has
            return False if self._books.running or self._loads else given
        fork, pieces = begun
        load = Load(self._next(), request.request_id, not isinstance(answer, Later), tokens, pieces)
        flight = Flight(load, request, fork, given.tokens, self._clock())
        if not isinstance(answer, Later):
            self._offer = flight
            return fork
        flight.deadline += answer.timeout
        self._wait(request, flight)
        return True

    def _limit(self, request: Request, given: Beginning) -> int:
        """Most tokens to ask for; 0 if the connector is not to be asked."""
        asks = self._connector.config.loads and self._outside.possible
        if not asks or request.fork is not None or request in self._barred:
            return 0
        return request.readable // self._outside.border * self._outside.border

    def _wait(self, request: Request, flight: Flight) -> None:
        """The request leaves the queue until its load is over."""
        if not request.admitted:
            request.cached_tokens = flight.local
            if self._kv.caching:
                self._kv.count_query(request.num_prompt, flight.local)
        self._books.waiting.remove(request)
        request.load()
        self._loads.add(flight)
        self._tell_allocated(request, flight)

    def started(self, request: Request, given: Beginning, step_id: int) -> None:
        self._news.admitted.append((request, request.epoch > 0))
        flight, self._offer = self._offer, None
        if flight is None:
            return
        assert given is flight.fork, "another beginning than the one offered"
        flight.epoch = request.epoch
        request.cached_tokens = flight.local if request.epoch == 0 else request.cached_tokens
        if request.epoch == 0 and self._kv.caching:
            self._kv.count_query(request.num_prompt, flight.local)
        self._loads.start(step_id, flight)
        self._tell_allocated(request, flight)

    def withdraw(self) -> None:
        if self._offer is not None:
            self._kv.release_fork(self._offer.fork)
            self._offer = None

    def _tell_allocated(self, request: Request, flight: Flight) -> None:
        hashes = self._outside.hashes(request.kv, flight.load.tokens)
        blocks = blocks_view([b.id for b in table] for table in flight.fork.blocks)
        self._news.begun.append(flight)
        self._connector.allocated(Allocated(request_view(request, hashes), blocks, flight.load))

    def _count_question(self, request: Request, given: Beginning) -> None:
        if request not in self._asked:
            self._asked.add(request)
            if not request.admitted:
                self._kv.count_external(max(request.num_prompt - given.tokens, 0), 0)

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    # What happens to requests

    def advanced(self, request: Request, before: int) -> None:
        if not self.saves:
            return
        pieces = self._outside.filled(request.kv, before, request.computed)
        if pieces:
            self._news.filled += pieces
            self._news.filled_blocks += self._outside.hold([piece.block for piece in pieces])

    def preempted(self, request: Request) -> None:
        self._news.preempted.append(request.request_id)

    def ended(self, request: Request, reason: str) -> None:
        dropped = self._loads.orphan(request)
        if dropped is not None:
            self._news.dropped.append(dropped)
        self._asked.discard(request)
        self._barred.discard(request)
        self._news.finished.append(request.request_id)
        held = request.kv.block_ids() if request.status is Status.RUNNING else []
        hashes = self._outside.hashes(request.kv, request.computed)
        keep_id = self._next()
        view = request_view(request, hashes)
        keep = self._connector.finished(Finished(view, blocks_view(held), reason, keep_id))
        if keep is None:
            return
        request.kv_params = keep.params
        blocks = self._outside.hold([number for table in held for number in table])
        if blocks:
            self._keeps.add(keep_id, blocks, keep.timeout)

    # A step goes out

    def step(self, record: Record) -> ConnectorStep:
        news, self._news = self._news, News()
        record.loose += news.filled_blocks
        loads = [flight.load for flight in news.begun]
        # A step that reads a load may lose its request on the way, but not the blocks.
        read = [piece.block for load in loads if load.now for piece in load.pieces]
        record.loose += self._outside.hold(read)
        view = news.view(record, self._outside)
        order = self._connector.step(view)
        reset, self._reset = self._reset, None
        dropped = self._lost.names()
        if order is None:
            self._news.dropped += [*news.dropped, *(load.load_id for load in loads)]
            return ConnectorStep(None, loads, reset, broken=True, dropped=dropped)
        free = [number for number in order.holds if not self._outside.in_use(number)]
        if free:
            raise self._connector.breach(f"step holds blocks {free}, which nobody uses")
        if order.holds:
            self._saves.add(view.step_id, self._outside.hold(order.holds), order.timeout)
        return ConnectorStep(order.metadata, loads, reset, dropped=dropped)

    # A step comes back

    def take(self, record: Record, result: StepResult) -> list[EngineOutput]:
        report = result.transfers or TransferReport()
        self._loads.note_failures(report)
        self._release(report)
        outputs = []
        for flight in self._loads.over([*report.received, *report.astray]):
            if flight.load.load_id in report.astray:
                self._lose(flight)
            outputs += self._land(flight)
        for flight in self._loads.of_step(record.plan.step_id):
            if result.transfers is None or flight.load.load_id in report.astray:
                self._lose(flight)
            outputs += self._judge(flight)
        for flight in self._loads.expired():
            self._news.dropped.append(flight.load.load_id)
            self._lose(flight)
            outputs += self._land(flight)
        for name, value in report.stats.items():
            self._counts[name] = self._counts.get(name, 0.0) + value
        if result.transfers is not None:
            self._connector.report(report)
        return outputs

    def _release(self, report: TransferReport) -> None:
        """Give up references on blocks that the connector needs no longer."""
        freed = self._keeps.release(report.sent) + self._keeps.expired()
        freed += self._saves.release(report.saved) + self._saves.expired()
        over = [load_id for load_id in report.received if load_id not in report.astray]
        self._kv.release(freed + self._lost.release([*over, *report.stopped]))

    def _lose(self, flight: Flight) -> None:
        """Nothing of a load is of use, but something may still be written to its blocks."""
        flight.fail()
        blocks = self._outside.hold([piece.block for piece in flight.load.pieces])
        self._lost.add(flight.load.load_id, blocks, inf)

    def _land(self, flight: Flight) -> list[EngineOutput]:
        """A load between steps is over: its request goes back to the queue, or ends."""
        request = flight.request
        if request is None:
            self._kv.release_fork(flight.fork)
            return []
        if not flight.failed:
            self._settle(request, flight, flight.fork)
            self._books.loaded(request, flight.fork)
            return []
        if self._fails:
            self._books.end(request, "error")
            self._kv.release_fork(flight.fork)
            return [_failure(flight, request)]
        fork = self._salvage(request, flight, flight.fork.blocks)
        self._kv.release_fork(flight.fork)
        self._books.loaded(request, fork)
        return []

    def _judge(self, flight: Flight) -> list[EngineOutput]:
        """The step that read a load is over: nothing more to do, or it computed with bad blocks."""
        request = flight.request
        assert request is not None
        if request.status is Status.FINISHED:
            return []
        holds = request.status is Status.RUNNING and request.epoch == flight.epoch
        if not flight.failed:
            if holds:
                self._settle(request, flight, flight.fork)
            return []
        if self._fails:
            self._books.end(request, "error")
            return [_failure(flight, request)]
        if not holds:  # it was preempted while the step was in flight
            self._barred.add(request)
            request.distrust(flight.epoch)
            return []
        fork = self._salvage(request, flight, request.kv.tables)
        self._books.rewind(request, fork)
        return []

    def _settle(self, request: Request, flight: Flight, good: Fork | None) -> None:
        """Good blocks are filed and counted."""
        if self._kv.caching:
            self._outside.file(request.kv, flight.load.pieces, flight.failed)
        tokens = flight.local if good is None else good.tokens
        if request.epoch == 0:
            request.cached_tokens = max(tokens, flight.local)
            self._kv.count_external(0, max(tokens - flight.local, 0))

    def _salvage(self, request: Request, flight: Flight, tables: list[list[Block]]) -> Fork | None:
        """What can be used of a load with bad blocks; the request is not asked about again."""
        self._barred.add(request)
        fork = self._outside.keep(tables, flight.load.tokens, flight.failed)
        if fork is not None and fork.tokens <= flight.local and self._kv.caching:
            self._kv.release_fork(fork)  # the own cache has as much
            fork = None
        self._settle(request, flight, fork)
        return fork

    @property
    def _fails(self) -> bool:
        return self._connector.config.kv_load_failure_policy == "fail"

    # The rest

    def loading(self) -> Iterator[Request]:
        return self._loads.waiting()

    def forks(self) -> list[Fork]:
        return self._loads.forks()

    def blocks(self) -> list[Block]:
        lent = self._keeps.blocks() + self._saves.blocks() + self._lost.blocks()
        return lent + self._news.filled_blocks

    def stats(self) -> dict[str, float]:
        return {**self._counts, **self._connector.stats()}

    def reset(self, reason: str) -> None:
        self._reset = reason
        self._connector.reset(reason)


def _failure(flight: Flight, request: Request) -> EngineOutput:
    load = flight.load
    where = f"{len(flight.failed)} of {len(load.pieces)} blocks"
    error = f"loading the first {load.tokens} tokens from outside failed for {where}"
    return make_end(request, "error", error)
