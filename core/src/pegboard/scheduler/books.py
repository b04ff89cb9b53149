"""Who is where: all rooms of the scheduler, and the moves between them.

Every request is in one room; every block, slot and reference belongs to somebody in a room. A move
keeps all books in step, so that nothing can be half done.
"""

from __future__ import annotations

from pegboard.api.scheduler import SchedulerStats
from pegboard.kv import Beginning, Fork, KVManager
from pegboard.scheduler.draft import Draft, Record
from pegboard.scheduler.families import Families, check_kin
from pegboard.scheduler.kinship import Kinship
from pegboard.scheduler.no_transfers import NoTransfers
from pegboard.scheduler.policies import POLICIES
from pegboard.scheduler.request import Request, Status
from pegboard.scheduler.slots import SlotBook

__all__ = ["Books"]


class Books:
    """The rooms. Fields are read by the scheduler and the audit; changes go through the methods."""

    def __init__(self, kv: KVManager, slots: int, policy: str = "fcfs") -> None:
        """`policy` is a name of `POLICIES`."""
        self.kv = kv
        self.slots = SlotBook(slots)
        self._policy = POLICIES[policy]
        self.waiting = self._policy.queue(kv)
        self.running: list[Request] = []
        """In the policy's order: the last one gives way first."""
        self.families = Families(kv)
        self.kinship = Kinship(kv.groups)
        self.requests: dict[str, Request] = {}
        """All live ones by id."""
        self.in_flight: dict[int, Record] = {}
        """By step, oldest first."""
        self.preemptions = 0
        self.transfers = NoTransfers()
        """The KV connector's books."""

    def enter(self, request: Request) -> None:
        """Take in a new request: to the queue, or parked with the parent whose prompt it shares."""
        parent = self.requests.get(request.origin.parent or "")
        if parent is not None:
            check_kin(request, parent)
        self.requests[request.request_id] = request
        if parent is None or self.families.join(request, parent):
            self.waiting.push(request)

    def start(
        self, request: Request, given: Beginning, blocks: list[list[int]], draft: Draft
    ) -> None:
        """From the queue to the running ones; `blocks` are new, beside those of `given`."""
        self.waiting.remove(request)
        if request.fork is not None and given is request.fork:
            self.families.adopt(request)
        if given.sources:
            sources = [source.block for source in given.sources]
            draft.add_copies(self.kv.copies(given, blocks), sources)
        request.admit(self.slots.take(), given.tokens)
        self._policy.seat(self.running, request)
        self.kinship.joined(request)

    def preempt_last(self, draft: Draft) -> Request:
        """Back to the queue with the last running request; it has no row in this step."""
        request = self.running.pop()
        draft.drop(request)
        self.preemptions += 1
        self.transfers.preempted(request)
        self._leave_device(request)
        request.preempt()
        self.waiting.push(request)
        return request

    def advance(self, request: Request, computed: int) -> None:
        """Keys and values of the first `computed` tokens are in the cache now, for everyone."""
        before, request.computed = request.computed, computed
        self.kv.commit(request.kv, computed)
        if request.prompt_done:
            for child in self.families.prompt_done(request):
                self.waiting.push(child)
            self.kv.drop_snapshots(request.kv)
        self.transfers.advanced(request, before)
        self.kv.forget(request.kv, computed)  # after forks, which reach one token further back
        # Without a cache of one's own nobody else watches the borders that a connector wants.
        quiet = request.prompt_done and (self.kv.caching or not self.transfers.saves)
        request.quiet_until = min(self.kv.quiet_until(request.kv), request.needed) if quiet else 0

    def loaded(self, request: Request, fork: Fork | None) -> None:
        """A request's load is over: back to the queue, with references on what it brought."""
        if fork is None:
            request.wait()
        else:
            self.families.grant(request, fork)
        self.waiting.push(request)

    def rewind(self, request: Request, fork: Fork | None) -> None:
        """A running request read bad blocks: back to the queue, with references on good ones."""
        self.running.remove(request)
        self._leave_device(request)
        request.distrust(request.epoch)
        request.preempt()
        self.loaded(request, fork)

    def end(self, request: Request, reason: str) -> None:
        """Take a live request out of every book, whatever its state."""
        self.transfers.ended(request, reason)
        if request.status is Status.RUNNING:
            self.running.remove(request)
            self._leave_device(request)
        elif request.status is Status.WAITING:
            self.waiting.remove(request)
        heir = self.families.leave(request)
        if heir is not None:
            self.waiting.push(heir)
        request.end()
        del self.requests[request.request_id]

    def _leave_device(self, request: Request) -> None:
        """Give up slot and blocks; what a step in flight still writes stays back until its update.

        The slot stays back because that step samples into it. Of the blocks, those after the
        computed tokens do: nobody else may hold or fill them while they change. They are filed
        under no key for these tokens, and never will be, for only the update of a step that wrote
        a live request files its blocks, and by then the request has ended or begun a new epoch.
        The blocks before them are only read, and the step that reads them runs before any plan
        that could give them away (see `api.executor.Executor`), so that they are free at once.
        """
        record = self.in_flight.get(request.last_step)
        if record is not None:
            written = self.kv.being_written(request.kv, request.computed)
            self.kv.hold(written)
            record.loose += written
        self.kinship.left(request)
        self.kv.free(request.kv)
        self.slots.release(request.slot, request.last_step)

    @property
    def landing_frees(self) -> bool:
        """The update of a step in flight will make blocks available."""
        return any(record.loose for record in self.in_flight.values())

    def land(self, record: Record) -> None:
        """A step is over: its copies are made, its slots and blocks may be used again."""
        del self.in_flight[record.plan.step_id]
        self.kv.release(record.loose)
        self.slots.updated(record.plan.step_id)

    def stats(self) -> SchedulerStats:
        """A snapshot."""
        pool = self.kv.pool
        return SchedulerStats(
            running=len(self.running),
            waiting=len(self.requests) - len(self.running),
            used_blocks=pool.total - pool.available,
            total_blocks=pool.total,
            preemptions=self.preemptions,
            cache=self.kv.stats(),
        )
