"""Who is where: all rooms of the scheduler, and the moves between them.

Every request is in one room; every block, slot and reference belongs to somebody in a room. A move
keeps all books in step, so that nothing can be half done.
"""

from __future__ import annotations

from pegboard.kv import Beginning, Fork, KVManager
from pegboard.scheduler.draft import Draft, Record
from pegboard.scheduler.families import Families, check_kin
from pegboard.scheduler.no_transfers import NoTransfers
from pegboard.scheduler.queue import ArrivalQueue
from pegboard.scheduler.request import Request, Status
from pegboard.scheduler.slots import SlotBook

__all__ = ["Books"]


class Books:
    """The rooms. Fields are read by the scheduler and the audit; changes go through the methods."""

    def __init__(self, kv: KVManager, slots: int) -> None:
        self.kv = kv
        self.slots = SlotBook(slots)
        self.waiting = ArrivalQueue()
        self.running: list[Request] = []
        """In order of admission."""
        self.families = Families(kv)
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
        self.running.append(request)

    def preempt_last(self, draft: Draft) -> Request:
        """Back to the queue with the request admitted last; it has no row in this step."""
        request = self.running.pop()
        draft.drop(request)
        self.preemptions += 1
        self.transfers.preempted(request)
        self.kv.free(request.kv)
        self.slots.release(request.slot, request.last_step)
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
        self.kv.free(request.kv)
        self.slots.release(request.slot, request.last_step)
        request.distrust(request.epoch)
        request.preempt()
        self.loaded(request, fork)

    def end(self, request: Request, reason: str) -> None:
        """Take a live request out of every book, whatever its state."""
        self.transfers.ended(request, reason)
        if request.status is Status.RUNNING:
            self.running.remove(request)
            self.slots.release(request.slot, request.last_step)
            self.kv.free(request.kv)
        elif request.status is Status.WAITING:
            self.waiting.remove(request)
        heir = self.families.leave(request)
        if heir is not None:
            self.waiting.push(heir)
        request.end()
        del self.requests[request.request_id]

    def land(self, record: Record) -> None:
        """A step is over: its copies are made, its slots may be used again."""
        del self.in_flight[record.plan.step_id]
        self.kv.release(record.loose)
        self.slots.updated(record.plan.step_id)
