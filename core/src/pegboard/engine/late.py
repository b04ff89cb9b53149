"""The null object of late inputs."""

from __future__ import annotations

from pegboard.api.step import LateInputs, StepPlan, StepResult

__all__ = ["NothingLate"]


class NothingLate:
    """`api.late.LateSource` of an engine in which no row waits for anything."""

    def planned(self, plan: StepPlan) -> bool:
        return False

    def inputs(self, plan: StepPlan) -> LateInputs:
        return LateInputs(step_id=plan.step_id)

    def updated(self, plan: StepPlan, result: StepResult) -> None:
        """Nothing follows from it."""
