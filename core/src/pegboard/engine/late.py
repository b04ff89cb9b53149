"""Late inputs: none at all, tokens for logits processors that want them on the host, and several
sources in one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pegboard.api.late import LateSource
from pegboard.api.step import LateInputs, StepPlan, StepResult
from pegboard.config.logits import LogitsRoster

__all__ = ["HostTokens", "JoinedLate", "NothingLate", "late_source"]


class NothingLate:
    """`api.late.LateSource` of an engine in which no row waits for anything."""

    def planned(self, plan: StepPlan) -> bool:
        return False

    def inputs(self, plan: StepPlan) -> LateInputs:
        return LateInputs(step_id=plan.step_id)

    def updated(self, plan: StepPlan, result: StepResult) -> None:
        """Nothing follows from it."""


class _Follower(msgspec.Struct):
    """A request whose tokens are wanted."""

    fresh: list[int] = msgspec.field(default_factory=list)
    """Tokens that the runner was not told."""
    in_flight: int = 0
    """Tokens that steps not yet updated will sample."""


class HostTokens:
    """`api.late.LateSource`: tells the runner what it sampled, for logits processors that need it
    on the host. A runner knows the tokens of a new row from the plan."""

    def __init__(self, roster: LogitsRoster) -> None:
        self._roster = roster
        self._rows: dict[int, _Follower] = {}

    def planned(self, plan: StepPlan) -> bool:
        if plan.resync:
            self._rows.clear()
        for slot in plan.freed_slots:
            self._rows.pop(slot, None)
        for new in plan.new_rows:
            if any(processor.needs_host_ids for processor in self._roster.serving(new.params)):
                self._rows[new.slot] = _Follower()
        followers = self._sampling(plan)
        waits = any(follower.in_flight for follower in followers.values())
        for follower in followers.values():
            follower.in_flight += 1
        return waits

    def inputs(self, plan: StepPlan) -> LateInputs:
        late = LateInputs(plan.step_id)
        for slot, follower in self._sampling(plan).items():
            if follower.fresh:
                late.token_ids[slot], follower.fresh = follower.fresh, []
        return late

    def updated(self, plan: StepPlan, result: StepResult) -> None:
        for slot in result.failed:
            self._rows.pop(slot, None)
        for slot, tokens in zip(result.slots, result.token_ids, strict=True):
            follower = self._rows.get(slot)
            if follower is not None:
                follower.fresh += tokens
                follower.in_flight -= 1

    def _sampling(self, plan: StepPlan) -> dict[int, _Follower]:
        """By slot, the followers of the rows that sample."""
        if not self._rows:
            return {}
        pairs = zip(plan.slots, plan.samples, strict=True)
        return {slot: self._rows[slot] for slot, samples in pairs if samples and slot in self._rows}


class JoinedLate:
    """`api.late.LateSource` of several."""

    def __init__(self, sources: Sequence[LateSource]) -> None:
        self._sources = tuple(sources)

    def planned(self, plan: StepPlan) -> bool:
        waits = [source.planned(plan) for source in self._sources]  # each must see each plan
        return any(waits)

    def inputs(self, plan: StepPlan) -> LateInputs:
        late = LateInputs(plan.step_id)
        for source in self._sources:
            made = source.inputs(plan)
            late.masks.update(made.masks)
            late.token_ids.update(made.token_ids)
        return late

    def updated(self, plan: StepPlan, result: StepResult) -> None:
        for source in self._sources:
            source.updated(plan, result)


def late_source(masks: LateSource | None, roster: LogitsRoster) -> LateSource | None:
    """What makes the late inputs of an engine; None for nothing."""
    sources = [] if masks is None else [masks]
    if any(processor.needs_host_ids for processor in roster.processors):
        sources.append(HostTokens(roster))
    return JoinedLate(sources) if len(sources) > 1 else next(iter(sources), None)
