"""What the result of a step means for each of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from pegboard.api.step import StepPlan, StepResult
from pegboard.api.views import EngineOutput
from pegboard.scheduler.books import Books
from pegboard.scheduler.draft import Record
from pegboard.scheduler.request import Request, Status
from pegboard.scheduler.results import LENGTH, make_end, make_output, take_scores, take_tokens

__all__ = ["Landing"]


class Landing:
    """The update of one step."""

    def __init__(self, books: Books, result: StepResult) -> None:
        self._books = books
        self._result = result
        self._now = monotonic()
        """Time of all outputs."""

    def rows(self, record: Record) -> list[EngineOutput]:
        """What is told of the rows; nothing of those that ended since the plan."""
        outputs = []
        take, finished = self._take, Status.FINISHED
        slots, tokens = record.plan.slots, _tokens(record.plan, self._result)
        columns = (record.requests, record.epochs, slots, record.stops, tokens)
        plain, now = not (self._result.failed or self._result.logprobs), self._now
        for request, epoch, slot, stop, sampled in zip(*columns, strict=True):
            if request.status is finished:
                continue
            # Most rows bring a token that is told and nothing else; they are spared the questions.
            # (Of epoch too: who was preempted is not quiet before a row of the new one has landed.)
            quiet = plain and stop < request.quiet_until
            if quiet and sampled and len(sampled) == 1 and sampled[0] not in request.end_ids:
                request.computed = stop
                request.output_ids.append(sampled[0])
                cached = request.cached_tokens
                outputs.append(
                    EngineOutput(request.request_id, sampled, cached_tokens=cached, time=now)
                )
                continue
            output = take(request, epoch, slot, stop, sampled)
            if output is not None:
                outputs.append(output)
        return outputs

    def _take(
        self, request: Request, epoch: int, slot: int, computed: int, sampled: list[int] | None
    ) -> EngineOutput | None:
        """What one row brought, which ends with token `computed`; `sampled` is None if it was not
        to sample.

        A row of an earlier epoch still brings its token, but its blocks are gone.
        """
        result = self._result
        if epoch < request.trusted:
            request.known -= sampled is not None
            return None
        if not sampled or result.failed:
            error = self._fault(slot, sampled)
            if error is not None:
                self._books.end(request, "error")
                return make_end(request, "error", error, self._now)
        if epoch == request.epoch:
            if computed < request.quiet_until:
                request.computed = computed
            else:
                self._books.advance(request, computed)
        scores = take_scores(request, computed, slot, result) if request.scoring else None
        taken, ending = take_tokens(request, sampled) if sampled else ([], None)
        if sampled is None and not request.max_tokens and request.prompt_done:
            ending = LENGTH
        if ending is not None:
            self._books.end(request, ending.reason)
        elif not taken and scores is None:
            return None
        logprobs = result.logprobs.get(slot) if result.logprobs else None
        return make_output(request, self._now, taken, ending, scores, logprobs)

    def _fault(self, slot: int, sampled: list[int] | None) -> str | None:
        """Why a row cannot go on, if it cannot."""
        error = self._result.failed.get(slot)
        if error is None and sampled is not None and not sampled:
            return "the executor returned no token for this request"
        return error


def _tokens(plan: StepPlan, result: StepResult) -> Sequence[list[int] | None]:
    """What was sampled for each row: None where nothing was to be, and nothing if it is
    missing."""
    whole = result.slots == plan.slots and False not in plan.samples
    if whole and len(result.token_ids) == len(result.slots):
        return result.token_ids
    found = dict(zip(result.slots, result.token_ids, strict=True))
    rows = zip(plan.slots, plan.samples, strict=True)
    return [found.get(slot, []) if samples else None for slot, samples in rows]
