"""Where the time of a whole run goes: its steps by what they compute."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import attrs

from gpubench.workloads import Driver, Figures
from pegboard.api.step import StepPlan

BAND = 32
"""Decode steps are taken together by their rows, so many to a phase."""


@attrs.frozen
class Phase:
    """Steps of one sort; `seconds` and `tokens` are of all of them."""

    name: str
    steps: int
    seconds: float
    tokens: int


@attrs.frozen
class Moment:
    """A plan, and when it was made."""

    seconds: float
    rows: int
    tokens: int


def watch(driver: Driver, measure: Callable[[Driver], Figures]) -> tuple[Figures, list[Phase]]:
    """Run `measure`; the time from one plan to the next counts for the step of the first.

    With two steps in flight that is the period of the steps, one of them late.
    """
    scheduler = driver.llm.engine.core.scheduler
    plan, moments = scheduler.plan, list[Moment]()

    def watched() -> StepPlan:
        made = plan()
        moments.append(Moment(time.perf_counter(), made.rows, made.tokens))
        return made

    scheduler.plan = watched  # type: ignore[method-assign]
    try:
        figures = measure(driver)
    finally:
        scheduler.plan = plan  # type: ignore[method-assign]
    return figures, phases_of(moments)


def phases_of(moments: Sequence[Moment]) -> list[Phase]:
    """In the order in which they begin."""
    found: dict[str, Phase] = {}
    for one, after in itertools.pairwise(moments):
        name = name_of(one)
        so_far = found.get(name, Phase(name, 0, 0.0, 0))
        found[name] = Phase(
            name,
            so_far.steps + 1,
            so_far.seconds + after.seconds - one.seconds,
            so_far.tokens + one.tokens,
        )
    return list(found.values())


def name_of(moment: Moment) -> str:
    """Its phase."""
    if moment.tokens > moment.rows:
        return "prompts"
    if not moment.rows:
        return "nothing"
    last = -(-moment.rows // BAND) * BAND
    return f"decode, {last - BAND + 1} to {last}"


def show_phases(name: str, phases: Sequence[Phase]) -> str:
    """A short table."""
    whole = sum(phase.seconds for phase in phases) or 1.0
    lines = [f"phases of {name}: {whole:.3f} s"]
    lines += [
        f"  {phase.seconds / whole:6.1%}  {phase.name:<19} {phase.steps:5} steps of "
        f"{1e3 * phase.seconds / phase.steps:8.3f} ms  {phase.tokens} tokens"
        for phase in phases
    ]
    return "\n".join(lines)
