"""Children share their parent's prompt (n > 1): it is computed once, caching on or off.

::

    add ─► parked ── leader's prompt computed ─► waiting, holds references ── admitted ─► running
             │                                        │
             │ leader gone before that                │ blocks are short
             ▼                                        ▼
           the first child becomes the leader       waiting without: computes the prompt itself

References are taken in the update that completes the leader's prompt; after that the leader may end
as it likes.
"""

from __future__ import annotations

from collections.abc import Iterator

from pegboard.errors import RequestError
from pegboard.kv import Fork, KVManager
from pegboard.scheduler.request import Request, Status

__all__ = ["Families", "check_kin"]


class Families:
    """Parked children by leader, and the references of waiting children."""

    def __init__(self, kv: KVManager) -> None:
        self._kv = kv
        self._parked: dict[Request, dict[Request, None]] = {}  # in order; removal is constant
        self._forked: dict[Request, Fork] = {}  # oldest first

    def join(self, child: Request, parent: Request) -> bool:
        """Take in a new child of a live parent.

        True if it can wait in the queue, False if it is parked.
        """
        leader = parent.leader or parent
        if leader.status is Status.RUNNING and leader.prompt_done:
            self._give_fork(child, leader)
            return True
        child.park(leader)
        self._parked.setdefault(leader, {})[child] = None
        return False

    def prompt_done(self, leader: Request) -> list[Request]:
        """The leader's prompt is computed: its children get references and may be queued."""
        children = list(self._parked.pop(leader, ()))
        for child in children:
            self._give_fork(child, leader)
        return children

    def leave(self, request: Request) -> Request | None:
        """A request ends. Returns the child to be queued if one must take the lead."""
        self.release(request)
        if request.leader is not None:
            del self._parked[request.leader][request]
            if not self._parked[request.leader]:
                del self._parked[request.leader]
        children = self._parked.pop(request, None)
        if not children:
            return None
        leader, *others = children
        leader.wait()
        for child in others:
            child.park(leader)
        if others:
            self._parked[leader] = dict.fromkeys(others)
        return leader

    def adopt(self, child: Request) -> Fork:
        """The child is admitted: its references are its own from now on."""
        return self._forked.pop(child)

    def grant(self, request: Request, fork: Fork) -> None:
        """Give a request references on a beginning that was loaded; it may be queued then."""
        request.wait(fork)
        self._forked[request] = fork

    def release(self, child: Request) -> None:
        """The child's references, if it has any, are given up."""
        fork = self._forked.pop(child, None)
        if fork is not None:
            self._kv.release_fork(fork)
            child.fork = None

    def release_youngest(self) -> bool:
        """Blocks are short: give up the references taken last. False if there are none."""
        if not self._forked:
            return False
        self.release(next(reversed(self._forked)))
        return True

    def led_by(self, request: Request) -> bool:
        """Children wait for this request's prompt."""
        return request in self._parked

    def parked(self) -> Iterator[Request]:
        for children in self._parked.values():
            yield from children

    def forks(self) -> list[Fork]:
        """All references held by waiting children."""
        return list(self._forked.values())

    def check(self) -> None:
        """Verify states; raises `AssertionError` naming the request that is off."""
        for leader, children in self._parked.items():
            assert children, f"{leader.request_id!r} leads nobody"
            assert leader.status in (Status.WAITING, Status.LOADING, Status.RUNNING), (
                f"{leader.request_id!r} is gone"
            )
            assert leader.leader is None, f"{leader.request_id!r} leads and is led"
            for child in children:
                assert child.status is Status.PARKED, f"{child.request_id!r} is not parked"
                assert child.leader is leader, f"{child.request_id!r} has another leader"
        for child, fork in self._forked.items():
            assert child.status is Status.WAITING, f"{child.request_id!r} holds references"
            assert child.fork is fork, f"{child.request_id!r} does not know its references"

    def _give_fork(self, child: Request, leader: Request) -> None:
        """References for the child, unless the leader has given up what it would need."""
        fork = self._kv.fork(leader.kv, child.num_prompt)
        child.wait(fork)
        if fork is None:
            return
        child.scored = child.num_prompt - 1  # the leader's outputs bring them
        child.cached_tokens = leader.cached_tokens
        self._forked[child] = fork


def check_kin(child: Request, parent: Request) -> None:
    """Raise `RequestError` unless the two can share their prompt."""
    for field in ("prompt_ids", "cache_salt", "adapter", "media", "encoder_tokens"):
        if getattr(child.origin, field) != getattr(parent.origin, field):
            raise RequestError(
                f"parent={parent.request_id!r} is not allowed for request {child.request_id!r}: "
                f"a child must have its parent's {field}",
                field="parent",
            )
