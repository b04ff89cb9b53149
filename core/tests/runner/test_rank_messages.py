"""Messages between the engine's process and its ranks keep what they carry."""

from __future__ import annotations

import pytest

from pegboard.api.params import SamplingParams
from pegboard.api.step import (
    BlockCopy,
    LateInputs,
    NewRow,
    PromptLogprobs,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from pegboard.errors import ConfigError, RequestError
from pegboard.runner import wire


def test_a_plan_arrives_as_it_was_sent() -> None:
    params = SamplingParams(
        temperature=0.7,
        seed=-(2**63),
        stop=["x"],
        logit_bias={3: -1.5},
        stop_token_ids=[4],
        extra_args={"pace": {"of": [1, 2.5, None]}},
    )
    row = NewRow(2, [1, 2, 3], [9], params, 2**64 - 1, 1, [5], [[7], [8, 9]])
    plan = StepPlan(
        4,
        [2, 0],
        [0, 17],
        [3, 1],
        [True, False],
        [[[7], [8, 9]], [[], [3]]],
        new_rows=[row],
        freed_slots=[1],
        resync=True,
        copies=[BlockCopy(0, 4, 5, 6)],
        common_prefix=[0, 1],
    )
    message = wire.step(plan)
    assert message[:1] == wire.PLAN
    assert wire.read_plan(message[1:]) == plan


def test_late_inputs_and_results_arrive_as_they_were_sent() -> None:
    late = LateInputs(4, {2: bytes(range(256))}, {0: [7, 8]})
    assert wire.read_late(wire.late(late)[1:]) == late
    entry = TokenLogprobs([5, 6], [-0.5, -9999.0], 2)
    result = StepResult(
        4,
        [2, 0],
        [[5], []],
        logprobs={2: [entry]},
        prompt_logprobs={2: PromptLogprobs(1, [entry])},
        failed={0: "why"},
    )
    assert wire.read_result(wire.result(result)[1:]) == result


@pytest.mark.parametrize(
    "error", [ConfigError("a=1 is not allowed"), RequestError("no", field="prompt")]
)
def test_an_error_of_ours_arrives_as_one(error: Exception) -> None:
    found, trace = wire.unpack(wire.fault(error, "trace")[1:])
    assert (type(found), str(found), trace) == (type(error), str(error), "trace")


def test_any_other_error_arrives_as_its_trace() -> None:
    class OddError(ConfigError):
        """One that the other end could not import."""

    for error in (ZeroDivisionError("zero"), OddError("odd")):
        assert wire.unpack(wire.fault(error, "trace")[1:]) == (None, "trace")
