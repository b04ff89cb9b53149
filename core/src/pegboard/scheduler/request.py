"""The scheduler's own request. Nobody outside the scheduler sees it."""

from __future__ import annotations

import enum
from time import monotonic
from typing import Any, Literal

import msgspec

from pegboard.api.params import SamplingParams
from pegboard.api.step import NewRow
from pegboard.api.views import EngineRequest, RequestEvent
from pegboard.kv import Fork, KVRequest

__all__ = ["Request", "Status"]


class Status(enum.Enum):
    """Where a request stands.

    Exactly one room of the scheduler holds it in each state but the last.
    """

    WAITING = "waiting"
    """In the waiting queue: new, preempted, or a child whose parent's prompt is computed."""
    PARKED = "parked"
    """A child that waits for another request to compute their prompt."""
    LOADING = "loading"
    """Waits until its beginning is loaded from outside."""
    RUNNING = "running"
    """Has a slot and blocks."""
    FINISHED = "finished"
    """Gone; results of steps still in flight are ignored."""


class Request(msgspec.Struct, eq=False, kw_only=True):
    """One sequence on its way. Lengths count tokens from the prompt's first on::

        0 ........... computed ........... planned ........... known
          in the cache,        in steps that        prompt, output, and one
          steps updated        are in flight        placeholder per token that
                                                    a step in flight will sample

    Between steps of synchronous scheduling nothing is in flight: computed equals planned, and there
    are no placeholders.
    """

    # What each step asks for stands first and here, even where another object knows it too: with
    # many requests, an object that is looked into costs more than the look.
    known: int
    """Tokens that exist or will once the steps in flight are updated."""
    request_id: str
    output_ids: list[int]
    """The list of `kv`."""
    max_tokens: int
    """Tokens ever to be sampled."""
    end_ids: frozenset[int]
    scoring: bool
    """Asked for log-probabilities of the prompt."""
    status: Status = Status.WAITING
    slot: int = -1
    planned: int = 0
    computed: int = 0
    room: int = 0
    """Up to here tokens may be planned without a question: it needs them, and has blocks."""
    quiet_until: int = 0
    """Before so many tokens are computed, none of the computed ones changes any books, no output
    brings more than tokens, and none is the last that `max_tokens` allows."""
    epoch: int = 0
    """Counts preemptions: a step of an earlier epoch wrote to blocks that are no longer held."""
    trusted: int = 0
    """Steps of epochs before this one may have read bad blocks: what they bring is dropped."""
    last_step: int = -1
    """The last plan that named the slot."""
    cached_tokens: int = 0
    events: list[RequestEvent] | None = None
    """What happened since the last output."""
    origin: EngineRequest
    kv: KVRequest
    order: int
    """Place in the order of arrival."""
    num_prompt: int
    stop_ids: frozenset[int]
    """The ids of `end_ids` that the request asked for; they are named as its stop reason."""
    needed: int
    """Tokens ever to be computed: all but the last sampled one."""
    kv_params: dict[str, Any] | None = None
    """Told with the last output: what the KV connector says of the blocks that it keeps."""
    admitted: bool = False
    """Was running at least once."""
    scored: int = 0
    """Prompt positions whose log-probabilities were delivered, counted from position 1."""
    fork: Fork | None = None
    """References on the parent's prompt, while waiting."""
    leader: Request | None = None
    """While parked: the request that computes the prompt."""

    @classmethod
    def make(cls, origin: EngineRequest, kv: KVRequest, order: int) -> Request:
        """A waiting request that was taken in now."""
        stop_ids = frozenset(origin.params.stop_token_ids or ())
        return cls(
            request_id=origin.request_id,
            known=len(origin.prompt_ids),
            output_ids=kv.output_ids,
            origin=origin,
            kv=kv,
            order=order,
            num_prompt=len(origin.prompt_ids),
            end_ids=frozenset(origin.end_ids) | stop_ids,
            stop_ids=stop_ids,
            needed=cls.tokens_needed(origin),
            events=[RequestEvent("QUEUED", monotonic())],
            max_tokens=origin.max_tokens,
            scoring=origin.params.prompt_logprobs is not None,
        )

    @staticmethod
    def tokens_needed(origin: EngineRequest) -> int:
        """Tokens that a request may ever have in the cache."""
        return len(origin.prompt_ids) + max(origin.max_tokens, 1) - 1

    @property
    def params(self) -> SamplingParams:
        return self.origin.params

    @property
    def placeholders(self) -> int:
        """Tokens that steps in flight will sample."""
        return self.known - self.num_prompt - len(self.output_ids)

    @property
    def ready(self) -> int:
        """Tokens that the next step could compute."""
        known, needed = self.known, self.needed
        return (known if known < needed else needed) - self.planned

    @property
    def prompt_done(self) -> bool:
        """The whole prompt is in the cache."""
        return self.computed >= self.num_prompt

    @property
    def readable(self) -> int:
        """Tokens that may come from the cache instead of being computed.

        The last known one must be computed for its logits, and so must every position whose
        successor's log-probability is still wanted.
        """
        return self.scored if self.wants_scores else self.known - 1

    @property
    def wants_scores(self) -> bool:
        """Asked for prompt log-probabilities that are not delivered yet."""
        return self.scoring and self.scored < self.num_prompt - 1

    def park(self, leader: Request) -> None:
        """Wait until `leader` has computed the prompt."""
        self.status, self.leader = Status.PARKED, leader

    def wait(self, fork: Fork | None = None) -> None:
        """Wait in the queue, with references on the prompt if another request computed it."""
        self.status, self.leader, self.fork = Status.WAITING, None, fork

    def load(self) -> None:
        """Wait for a load."""
        self.status = Status.LOADING

    def distrust(self, epoch: int) -> None:
        """Steps up to this epoch read bad blocks."""
        self.trusted = max(self.trusted, epoch + 1)
        self.quiet_until = 0

    def admit(self, slot: int, start: int) -> None:
        """Start running, with `start` tokens computed already."""
        self.status, self.slot = Status.RUNNING, slot
        self.planned = self.computed = start
        self.measure()
        self.fork, self.admitted = None, True
        self._note("SCHEDULED")

    def measure(self) -> None:
        """It got blocks: see how far they reach."""
        self.room = min(self.kv.capacity, self.needed)

    def schedule(self, stop: int, step_id: int) -> bool:
        """Plan the tokens up to `stop`; True if the step will sample."""
        self.planned, self.last_step = stop, step_id
        if stop < self.known or not self.max_tokens:
            return False
        self.known += 1
        return True

    def preempt(self) -> None:
        """Stop running; everything must be computed again. Sampled tokens stay."""
        self.status, self.slot = Status.WAITING, -1
        self.planned = self.computed = self.quiet_until = self.room = 0
        self.epoch += 1
        self._note("PREEMPTED")

    def end(self) -> None:
        """Leave for good."""
        self.status, self.slot = Status.FINISHED, -1
        self.fork = self.leader = None

    def _note(self, kind: Literal["SCHEDULED", "PREEMPTED"]) -> None:
        self.events = [*(self.events or ()), RequestEvent(kind, monotonic())]

    def take_events(self) -> list[RequestEvent]:
        """What happened since the last call."""
        events, self.events = self.events, None
        return events or []

    def new_row(self, blocks: list[list[int]]) -> NewRow:
        """What the runner needs to know when the request gets its slot."""
        return NewRow(
            slot=self.slot,
            prompt_ids=self.origin.prompt_ids,
            output_ids=list(self.output_ids),
            params=self.params,
            seed=self.origin.seed,
            child=self.origin.child,
            end_ids=sorted(self.end_ids),
            blocks=blocks,
            encoder_tokens=self.origin.encoder_tokens,
        )
