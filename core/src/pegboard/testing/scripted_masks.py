"""Grammars that are functions, so that tests can demand masks of the right prefix."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from pegboard.api.step import LateInputs, NewRow, StepPlan, StepResult

__all__ = ["Rule", "ScriptedMasks", "allowed_ids", "by_the_third", "pack_mask"]

Rule = Callable[[Sequence[int]], Collection[int]]
"""From the output ids so far to the ids that may come next."""


class _Follower(msgspec.Struct):
    """A request with a rule."""

    rule: Rule
    prompt: int
    output_ids: list[int]
    in_flight: int = 0
    """Tokens that steps not yet updated will sample."""


class ScriptedMasks:
    """`api.late.LateSource`: the mask of a row is what its rule makes of the output so far.

    Fails at once if it is asked for the mask of a row whose earlier tokens it was not told.
    """

    def __init__(self, vocab_size: int, choose: Callable[[NewRow], Rule | None]) -> None:
        """`choose` gives the rule of a request, or None if all its tokens are free."""
        self.masks = 0
        """Masks made."""
        self.late = 0
        """Of these, how many after the step's forward pass was started."""
        self.mixed_steps = 0
        """Steps that sampled rows with and without a mask."""
        self._vocab_size = vocab_size
        self._choose = choose
        self._rows: dict[int, _Follower] = {}

    def planned(self, plan: StepPlan) -> bool:
        if plan.resync:
            self._rows.clear()
        for slot in plan.freed_slots:
            self._rows.pop(slot, None)
        for new in plan.new_rows:
            rule = self._choose(new)
            if rule is not None:
                self._rows[new.slot] = _Follower(rule, len(new.prompt_ids), list(new.output_ids))
        followers = [self._rows[slot] for slot in _sampling(plan) if slot in self._rows]
        waits = any(follower.in_flight for follower in followers)
        for follower in followers:
            self.late += follower.in_flight > 0
            follower.in_flight += 1
        return waits

    def inputs(self, plan: StepPlan) -> LateInputs:
        late = LateInputs(plan.step_id)
        for slot, start, count in zip(plan.slots, plan.starts, plan.counts, strict=True):
            row = self._rows.get(slot)
            if row is None or start + count < row.prompt:
                continue
            known = row.prompt + len(row.output_ids)
            assert known == start + count, f"slot {slot}: {known} tokens told, not {start + count}"
            late.masks[slot] = pack_mask(row.rule(row.output_ids), self._vocab_size)
        self.masks += len(late.masks)
        self.mixed_steps += 0 < len(late.masks) < sum(plan.samples)
        return late

    def updated(self, plan: StepPlan, result: StepResult) -> None:
        for slot in result.failed:
            self._rows.pop(slot, None)
        for slot, tokens in zip(result.slots, result.token_ids, strict=True):
            row = self._rows.get(slot)
            if row is not None:
                row.output_ids += tokens
                row.in_flight -= 1


def _sampling(plan: StepPlan) -> list[int]:
    """Slots of the rows that sample."""
    return [slot for slot, samples in zip(plan.slots, plan.samples, strict=True) if samples]


def by_the_third(new: NewRow) -> Rule | None:
    """A rule for requests whose first id is odd: a third of the ids may come next, and which third
    depends on all that came before."""
    kind = new.prompt_ids[0] % 4
    if kind % 2 == 0:
        return None
    return lambda output: {t for t in range(97) if (t + sum(output) + len(output)) % 3 == kind % 3}


def pack_mask(ids: Iterable[int], vocab_size: int) -> bytes:
    """The bitmask of `LateInputs.masks` that allows these ids."""
    mask = 0
    for token in ids:
        mask |= 1 << token
    return mask.to_bytes(-(-vocab_size // 8), "little")


def allowed_ids(mask: bytes) -> frozenset[int]:
    """The ids that a bitmask allows."""
    bits = int.from_bytes(mask, "little")
    return frozenset(i for i in range(bits.bit_length()) if bits >> i & 1)
