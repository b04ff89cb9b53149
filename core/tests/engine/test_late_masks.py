"""Grammar masks that are known only after the forward pass was started."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pegboard.api.executor import Pending
from pegboard.api.params import SamplingParams
from pegboard.api.step import LateInputs, NewRow, StepPlan, StepResult
from pegboard.api.views import EngineOutput
from pegboard.config.logits import LogitsRoster
from pegboard.engine.late import HostTokens, JoinedLate, late_source
from pegboard.testing.processors import SCRIPTED_PROCESSORS
from pegboard.testing.scripted_masks import Rule, ScriptedMasks, by_the_third
from pegboard.testing.toy import ToyExecutor, toy_generate
from pegboard.testing.toy_core import CoreRun, toy_core
from pegboard.testing.toy_engine import toy_request

TOY_VOCABULARY = 97


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("blocks", [64, 22])
def test_masks_follow_the_right_prefix(overlap: bool, blocks: int) -> None:
    masks = ScriptedMasks(TOY_VOCABULARY, by_the_third)
    engine = toy_core(
        overlap, late=masks, num_gpu_blocks_override=blocks, max_num_batched_tokens=24
    )
    requests = [
        toy_request(f"{n}", [n, *range(n, 30)], 10 + n, end_ids=[5, 6, 7] if n > 6 else [])
        for n in range(10)
    ]
    told = CoreRun(engine, requests).finish()
    for request in requests:
        free = NewRow(0, request.prompt_ids, [], request.params, 0, 0, [], [])
        assert told[request.request_id].token_ids == toy_generate(request, by_the_third(free))
    assert masks.masks > 30
    assert masks.mixed_steps > 10, "rows with and without masks must meet"
    if overlap:
        assert engine.overlapped > 20
        assert masks.late > 20, "hardly a mask waited for the token before"
    else:
        assert masks.late == engine.overlapped == 0
    assert (engine.stats().preemptions > 0) is (blocks == 22)


def test_a_step_without_masks_is_sampled_at_once_and_one_with_masks_after_the_update() -> None:
    calls: list[str] = []

    class Noting(ToyExecutor):
        def execute(self, plan: StepPlan) -> Pending:
            calls.append(f"start {plan.step_id}")
            return super().execute(plan)

        def sample(self, plan: StepPlan, late: LateInputs) -> StepResult:
            calls.append(f"sample {plan.step_id}")
            return super().sample(plan, late)

    for masked, expected in (
        (0, ["start 0", "sample 0", "start 1", "sample 1", "update 0", "start 2", "sample 2"]),
        (1, ["start 0", "sample 0", "start 1", "update 0", "sample 1", "start 2", "update 1"]),
    ):
        calls.clear()
        engine = toy_core(executor=Noting(), late=ScriptedMasks(TOY_VOCABULARY, by_the_third))
        update = engine.scheduler.update

        def noted(
            plan: StepPlan,
            result: StepResult,
            update: Callable[..., list[EngineOutput]] = update,
        ) -> list[EngineOutput]:
            calls.append(f"update {plan.step_id}")
            return update(plan, result)

        engine.scheduler.update = noted  # type: ignore[method-assign]
        CoreRun(engine, [toy_request("a", [masked], 10)]).finish()
        assert calls[:7] == expected


def test_masks_and_tokens_for_processors_come_together() -> None:
    roster = LogitsRoster(SCRIPTED_PROCESSORS)
    assert late_source(None, LogitsRoster()) is None
    assert isinstance(late_source(None, roster), HostTokens)
    late = late_source(ScriptedMasks(TOY_VOCABULARY, by_the_third), roster)
    assert isinstance(late, JoinedLate)
    asking = SamplingParams(temperature=0.0, extra_args={"scripted_parity": 1})
    free = SamplingParams(temperature=0.0)
    rows = [NewRow(n, [n, 5], [], p, 0, 0, [], [[]]) for n, p in enumerate((asking, free, free))]
    first = StepPlan(0, [0, 1, 2], [0] * 3, [2] * 3, [True] * 3, [[[]]] * 3, new_rows=rows)
    second = StepPlan(1, [0, 1, 2], [2] * 3, [1] * 3, [True] * 3, [[[]]] * 3)
    assert not late.planned(first)
    made = late.inputs(first)
    assert (set(made.masks), made.token_ids) == ({1}, {})
    assert late.planned(second), "the tokens of the first step are wanted, for two reasons"
    late.updated(first, StepResult(0, [0, 1, 2], [[7], [8], [9]]))
    made = late.inputs(second)
    assert (set(made.masks), made.token_ids) == ({1}, {0: [7]})


def test_a_grammar_that_allows_nothing_ends_its_request_alone() -> None:
    def nothing_after_two(new: NewRow) -> Rule | None:
        return (lambda out: range(97) if len(out) < 2 else ()) if new.prompt_ids == [1] else None

    engine = toy_core(late=ScriptedMasks(TOY_VOCABULARY, nothing_after_two))
    told = CoreRun(engine, [toy_request("a", [1], 10), toy_request("b", [2], 10)]).finish()
    assert told["a"].finish_reason == "error" and len(told["a"].token_ids) == 2
    assert told["b"].token_ids == toy_generate(toy_request("b", [2], 10))
