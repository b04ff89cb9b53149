"""Who makes the inputs that depend on the tokens of the step before: grammar masks.

Two steps may be in flight, so a plan is often made before the tokens that it continues are known.
Its forward pass needs them on the device only. A grammar needs them on the host: its mask follows
the last token. So the forward pass starts without the mask, and sampling waits for it.
"""

from __future__ import annotations

from typing import Protocol

from pegboard.api.step import LateInputs, StepPlan, StepResult

__all__ = ["LateSource"]


class LateSource(Protocol):
    """Follows requests by slot, through plans and results, and makes what their rows need late.

    Called by: `EngineCore`, between the other calls of a step; no call may block. Order for two
    steps in flight: ``planned(n)``, ``inputs(n)``, ``planned(n + 1)``, ``updated(n)``,
    ``inputs(n + 1)``, …

    A slot is known by the plan's `new_rows` (with the tokens of a request that was preempted) until
    its `freed_slots`; a plan with `resync` states all of them anew.
    """

    def planned(self, plan: StepPlan) -> bool:
        """Take notice of a plan, before it is executed.

        True if the inputs of one of its rows depend on tokens that are still in flight. Then the
        step's sampling is put off, at the price of a pause on the device; else `inputs` is called
        at once.
        """
        ...

    def inputs(self, plan: StepPlan) -> LateInputs:
        """What the plan's rows need, once; every earlier step is updated if `planned` said True.

        A request may have ended while this step was in flight; nobody will see the token of its
        row, so that any mask will do, but there must be no error.
        """
        ...

    def updated(self, plan: StepPlan, result: StepResult) -> None:
        """Take the tokens of a step. Slots that were freed in the meantime are to be ignored."""
        ...
