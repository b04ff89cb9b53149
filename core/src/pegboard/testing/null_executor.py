"""An executor that computes nothing, to measure what the host does beside it."""

from __future__ import annotations

import time
from typing import Any

from pegboard.api.executor import ExecutorContext, MemoryProfile, Pending
from pegboard.api.kv import FullAttentionSpec, KVCacheConfig, KVSlot
from pegboard.api.step import LateInputs, StepPlan, StepResult
from pegboard.api.transfer import ConnectorLink
from pegboard.errors import UnsupportedError

__all__ = ["NullExecutor", "build_null"]

_LETTER = 70
"""A token that is a letter in the vocabulary of `pegboard.testing.checkpoints`."""


class NullExecutor:
    """Implements `pegboard.api.executor.Executor`: every row samples `token`, after `seconds` of
    sleep per step."""

    max_in_flight = 2

    def __init__(self, seconds: float = 0.0, token: int = 1) -> None:
        self._seconds = seconds
        self._token = token

    def load(self) -> None:
        """Nothing to load."""

    def kv_slots(self) -> tuple[KVSlot, ...]:
        return (KVSlot(0, "self", FullAttentionSpec(1, 2, "float32")),)

    def profile(self) -> MemoryProfile:
        return MemoryProfile(total=1 << 30, free=1 << 30, weights=0, peak_activations=0)

    def allocate(self, cache: KVCacheConfig) -> None:
        """Nothing is kept."""

    def warm_up(self) -> None:
        """Nothing to warm."""

    def connect(self) -> ConnectorLink:
        """There is no cache to attach to."""
        raise UnsupportedError("the null executor has no storage for a KV connector")

    def facts(self) -> dict[str, Any]:
        return {"device": "null", "platform": "null", "attention": [], "ops": {}}

    def close(self) -> None:
        """Nothing to release."""

    def execute(self, plan: StepPlan) -> Pending:
        if self._seconds:
            time.sleep(self._seconds)
        return _NullStep(plan, self._token)


class _NullStep:
    def __init__(self, plan: StepPlan, token: int) -> None:
        self._plan = plan
        self._token = token

    def sample(self, late: LateInputs) -> None:
        """The token is known."""

    def result(self) -> StepResult:
        plan = self._plan
        slots = [slot for slot, samples in zip(plan.slots, plan.samples, strict=True) if samples]
        return StepResult(plan.step_id, slots, [[self._token] for _ in slots])


def build_null(ctx: ExecutorContext) -> NullExecutor:
    """Entry of the descriptor ``null``: a letter from every row, and steps as long as the testkit's
    setting ``null_step_ms`` says."""
    milliseconds = getattr(ctx.settings, "null_step_ms", 0.0)
    return NullExecutor(milliseconds / 1e3, token=_LETTER)
