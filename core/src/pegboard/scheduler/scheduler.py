"""The scheduler of the core: running requests first, under a token budget.

There is no prefill phase and no decode phase. A request has tokens known and tokens planned, and
each step closes the gap as far as budget and blocks reach: first for running requests, then for
waiting ones, each in the order of the policy (`policies`). If blocks run out, the references of
waiting children are given up, then the last running request is preempted: its blocks are freed and
it is computed again later, sampled tokens included.

Planning advances what is *planned*, updating what is *computed*; see `Request`. `plan` may thus be
called again before the update of the step before; updates come in the order of plans.
"""

from __future__ import annotations

from collections.abc import Iterable

from pegboard.api.events import KVEvent
from pegboard.api.kv import KVCacheConfig
from pegboard.api.scheduler import SchedulerStats
from pegboard.api.step import StepPlan, StepResult
from pegboard.api.views import EngineOutput, EngineRequest
from pegboard.config.engine import EngineConfig
from pegboard.errors import PluginError
from pegboard.kv import Allocation, Beginning, Fork, KVManager
from pegboard.scheduler.admission import check_request
from pegboard.scheduler.audit import audit
from pegboard.scheduler.books import Books
from pegboard.scheduler.draft import Draft, Record
from pegboard.scheduler.guard import Connected
from pegboard.scheduler.landing import Landing
from pegboard.scheduler.limits import PrefillLimits
from pegboard.scheduler.request import Request
from pegboard.scheduler.results import make_end
from pegboard.scheduler.room import Room
from pegboard.scheduler.transfers import Transfers

__all__ = ["TokenBudgetScheduler"]


class TokenBudgetScheduler:
    """Implements `pegboard.api.scheduler.Scheduler` over the cache that the executor allocated."""

    def __init__(
        self, config: EngineConfig, cache: KVCacheConfig, connected: Connected | None = None
    ) -> None:
        """`connected` is the KV connector's scheduler half, if there is one."""
        self._budget = config.max_num_batched_tokens
        self._chunked = config.enable_chunked_prefill
        self._kv = KVManager(
            cache,
            caching=config.enable_prefix_caching,
            budget=config.max_num_batched_tokens,
            events=config.wants_kv_events,
        )
        self._limits = PrefillLimits(config)
        self._room = Room(self._kv, config)
        self._books = Books(self._kv, config.max_num_seqs, config.scheduling_policy)
        if connected is not None:
            self._books.transfers = Transfers(connected, self._books, self._room.watermark)
        self._transfers = self._books.transfers
        self._arrivals = self._steps = 0
        self._resync = False

    # Requests come and go

    def add(self, request: EngineRequest) -> None:
        whole = None if self._chunked else self._budget
        check_request(request, self._books, whole)
        self._books.enter(Request.make(request, self._kv.open(request), self._arrivals))
        self._arrivals += 1

    def abort(self, ids: Iterable[str]) -> list[EngineOutput]:
        return [make_end(request, "abort") for request in self._end_all(ids, "abort")]

    def finish(self, ids: Iterable[str], reason: str) -> None:
        self._end_all(ids, reason)

    def _end_all(self, ids: Iterable[str], reason: str) -> list[Request]:
        """End the live ones among `ids`."""
        live = self._books.requests
        ended = [live[name] for name in dict.fromkeys(ids) if name in live]
        # Children before the parent that they wait for, else each would become the next one's.
        for request in reversed(ended):
            self._books.end(request, reason)
        return ended

    # Planning

    def plan(self) -> StepPlan:
        draft = Draft(self._steps, self._budget)
        if self._resync and self._books.in_flight:
            return self._dispatch(draft, False)  # nothing new until tokens in flight are known
        resync = self._restate(draft)
        self._limits.begin(draft.budget, self._books.running, self._books.waiting)
        self._continue_running(draft)
        if not draft.short:  # else blocks are short, and whoever waits would fail in vain
            self._admit_waiting(draft)
        return self._dispatch(draft, resync)

    def resync(self) -> None:
        self._resync = True

    def _restate(self, draft: Draft) -> bool:
        """If asked to, restate all running requests; no tokens are in flight."""
        if not self._resync:
            return False
        for request in self._books.running:
            draft.restate(request, request.kv.block_ids())
        return True

    def _continue_running(self, draft: Draft) -> None:
        """Give running requests their next tokens; the list may lose its tail on the way."""
        keeps_state, no_blocks = self._kv.keeps_state, self._kv.no_blocks
        for request in self._books.running:  # ends early where the tail is preempted
            if draft.budget <= 0:
                return
            # Most rows are a token that needs no block, so that they are spared all questions.
            start, stop = request.planned, request.known
            if stop <= request.room and stop - start == 1 and not keeps_state:
                draft.add_row(request, start, stop, no_blocks)
            else:
                self._continue(request, draft)

    def _continue(self, request: Request, draft: Draft) -> None:
        """Give a running request its next tokens, if there are any and room for them."""
        ready, start = request.ready, request.planned
        if ready <= 0:
            return
        count = self._limits.cut(ready, min(ready, draft.budget))
        if self._kv.keeps_state:
            count = self._cut(request, start, count)
        blocks = self._make_room(Allocation(request.kv, start, count), request, draft)
        if blocks is not None:
            if self._kv.keeps_state:
                self._snapshot(request, start, draft)
            draft.add_row(request, start, start + count, blocks)

    def _make_room(
        self, want: Allocation, request: Request, draft: Draft
    ) -> list[list[int]] | None:
        """Blocks for a running request, taken from others if need be.

        None if it was preempted, or if it waits: steps in flight may free what it needs.
        """
        books = self._books
        while (blocks := self._kv.allocate(want)) is None:
            if books.families.release_youngest():
                continue
            last = books.running[-1] is request
            leaves = self._kv.forgets and request.planned > request.computed
            if last and (leaves or books.landing_frees):
                draft.short = True
                return None
            if books.preempt_last(draft) is request:
                return None
        request.measure()
        return blocks

    def _cut(self, request: Request, start: int, count: int) -> int:
        """Shorten a chunk so that it ends where the state must be kept; at least 1 token."""
        if self._kv.keeps_state and self._books.families.led_by(request):
            fork = request.num_prompt - 1  # where the children begin
            if start < fork < start + count:
                count = fork - start
        return self._kv.cut(start, count)

    def _snapshot(self, request: Request, start: int, draft: Draft) -> None:
        """Keep the recurrent state for the request's children before a step overwrites it."""
        if start == request.num_prompt - 1 and self._books.families.led_by(request):
            draft.add_copies(self._kv.snapshot(request.kv, start))

    def _admit_waiting(self, draft: Draft) -> None:
        """Admit in the policy's order, as long as budget, slots and blocks last."""
        books = self._books
        self._limits.count(books.running)
        books.waiting.arrange(books.running)
        while draft.budget > 0 and books.slots.available and self._room.any(books.running):
            request = books.waiting.peek()
            # A preempted request whose last token is in flight comes back when the token is known.
            if request is None or request.placeholders or not self._admit(request, draft):
                return

    def _admit(self, request: Request, draft: Draft) -> bool:
        """Start the first waiting request, or pass over it.

        False if it must wait, True if the queue may be looked at again.
        """
        books = self._books
        given = request.fork or self._kv.match(request.kv, request.readable)
        if self._limits.passes_over(request.known - given.tokens):
            books.waiting.set_aside(request)
            return True
        found = self._transfers.look(request, given)
        if isinstance(found, bool):
            return found
        if self._start(request, found, draft):
            return True
        self._transfers.withdraw()
        if books.running or books.landing_frees:
            return False
        # Alone, a request fits: only references of waiting children can be in the way, or a hit,
        # which takes blocks beside those that it is copied to.
        if books.families.release_youngest():
            return True
        return bool(given.tokens) and self._start(request, self._kv.nothing(), draft)

    def _start(self, request: Request, given: Beginning, draft: Draft) -> bool:
        """Plan the first chunk of a waiting request; False if budget or blocks do not reach."""
        count = self._first_chunk(request, given.tokens, draft.budget)
        rest = request.known - given.tokens
        if count <= 0 or not self._limits.admits(rest, count):
            return False
        held = [[block.id for block in blocks] for blocks in given.blocks]
        reserve = self._room.reserve(request, given.tokens + count, self._books.running)
        want = Allocation(request.kv, given.tokens, count, given=given, reserve=reserve)
        new = self._kv.allocate(want)
        if new is None:
            return False
        self._count_hit(request, given)
        self._limits.admitted(rest, count)
        self._books.start(request, given, new, draft)
        self._transfers.started(request, given, draft.step_id)
        if self._kv.keeps_state:
            self._snapshot(request, given.tokens, draft)
        draft.restate(request, held)
        draft.add_row(request, given.tokens, given.tokens + count, new)
        return True

    def _first_chunk(self, request: Request, start: int, budget: int) -> int:
        """Tokens of the request's first step; 0 if the budget left is too small."""
        rest = min(request.known, request.needed) - start
        # Without chunks a prompt runs whole. Only a preempted request can be longer than a whole
        # step; it runs in the fewest pieces.
        if not self._chunked and budget < min(rest, self._budget):
            return 0
        return self._cut(request, start, self._limits.cut(rest, min(rest, budget)))

    def _count_hit(self, request: Request, given: Beginning) -> None:
        """Statistics of a prompt's first look into the cache."""
        if request.admitted or isinstance(given, Fork):
            return
        request.cached_tokens = given.tokens
        if self._kv.caching and not request.wants_scores:
            self._kv.count_query(request.num_prompt, given.tokens)

    def _dispatch(self, draft: Draft, resync: bool) -> StepPlan:
        """Seal the step and remember it until its update.

        A step without rows or transfers changes nothing: freed slots are told with the next one
        that has some.
        """
        if draft.empty and not self._transfers.busy:
            return draft.seal([], False).plan
        record = draft.seal(self._books.slots.freed(), resync)
        self._books.in_flight[record.plan.step_id] = record
        record.plan.common_prefix = self._books.kinship.blocks(self._books.running)
        record.plan.connector = self._transfers.step(record)
        self._steps += 1
        self._resync = self._resync and not resync
        return record.plan

    # Updating

    def update(self, plan: StepPlan, result: StepResult) -> list[EngineOutput]:
        if not plan.slots and plan.connector is None:
            return []
        record = self._record(plan, result)
        outputs = self._transfers.take(record, result)
        outputs += Landing(self._books, result).rows(record)
        self._books.land(record)
        return outputs

    def _record(self, plan: StepPlan, result: StepResult) -> Record:
        """The record of the oldest step in flight, which must be the one at hand."""
        oldest = next(iter(self._books.in_flight), None)
        if plan.step_id != oldest or result.step_id != oldest:
            raise PluginError(
                f"the executor returned step {result.step_id} for step {plan.step_id}, "
                f"while the oldest in flight is {oldest}"
            )
        return self._books.in_flight[plan.step_id]

    # The rest of the contract

    def has_work(self) -> bool:
        return bool(self._books.requests or self._books.in_flight or self._transfers.busy)

    def stats(self) -> SchedulerStats:
        stats = self._books.stats()
        stats.connector = self._transfers.stats()
        return stats

    def reset_prefix_cache(self) -> bool:
        if not self._kv.reset():
            return False
        self._transfers.reset("cache")
        return True

    def take_events(self) -> list[KVEvent]:
        return self._kv.take_events()

    @property
    def prefix_match_unit(self) -> int:
        """Tokens per hash of the prefix cache."""
        return self._kv.prefix_match_unit

    def cached(self) -> set[tuple[int, bytes]]:
        """What the prefix cache holds: pairs of group and hash. For tests and diagnosis."""
        return self._kv.pool.keys()

    def loading(self) -> set[str]:
        """Requests that wait until their beginning is loaded. For tests and diagnosis."""
        return {request.request_id for request in self._books.transfers.loading()}

    def check(self) -> None:
        audit(self._books)
