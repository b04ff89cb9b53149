"""Logits processors: who is served, in what order, and what becomes of one that fails."""

from __future__ import annotations

import itertools
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pegboard import LLM, SamplingParams
from pegboard.api.logits import LogitsCall, LogitsContext, LogitsProcessor, LogitsRow
from pegboard.errors import MissingPluginError, PluginError, RequestError
from pegboard.plugins import load_plugins
from pegboard.testing.checkpoints import write_tiny_model

SMALL = {"dtype": "float32", "max_model_len": 128, "num_gpu_blocks_override": 64, "max_num_seqs": 8}
PROMPTS = [[n + 5, 40 + n, *range(60, 70 + 3 * n)] for n in range(6)]


class FailingRows:
    """Fails where its argument says."""

    def __init__(self, ctx: LogitsContext) -> None:
        self._stages: dict[int, str] = {}

    def added(self, row: LogitsRow) -> None:
        self._stages[row.slot] = row.arguments["fail_at"]
        if self._stages[row.slot] == "added":
            raise ZeroDivisionError("it was asked for")

    def removed(self, slot: int) -> None:
        if self._stages.pop(slot) == "removed":
            raise ZeroDivisionError("it was asked for")

    def apply(self, call: LogitsCall) -> Any:
        stages = {self._stages[slot] for slot in call.slots}
        if "apply" in stages and min(call.lengths) > 18:
            raise ZeroDivisionError("it was asked for")
        if "shape" in stages:
            return call.logits[:, :5]
        if "nothing" in stages:
            return None
        if "all" in stages:
            return torch.full_like(call.logits, float("-inf"))
        return call.logits + (float("nan") if "nan" in stages else 0.0)


class UnbuiltRows:
    """Cannot be built."""

    def __init__(self, ctx: LogitsContext) -> None:
        raise OSError("a table is missing")


HERE = "tests_logits_processors"
FAILING = LogitsProcessor(name="failing", build=f"{HERE}:FailingRows", arguments=("fail_at",))
UNBUILT = LogitsProcessor(name="unbuilt", build=f"{HERE}:UnbuiltRows", arguments=("build_it",))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), seed=5)


@pytest.fixture(scope="module")
def board() -> Iterator[Any]:
    module = types.ModuleType(HERE)
    vars(module).update(FailingRows=FailingRows, UnbuiltRows=UnbuiltRows)
    sys.modules[HERE] = module
    yield load_plugins(extra=[("logits", FAILING), ("logits", UNBUILT)])
    del sys.modules[HERE]


@pytest.fixture(scope="module")
def llm(model: Path, board: Any) -> Iterator[LLM]:
    with LLM(str(model), board=board, **SMALL) as engine:
        yield engine


def asking(temperature: float = 0.0, tokens: int = 12, **extra: Any) -> SamplingParams:
    return SamplingParams(
        temperature=temperature, max_tokens=tokens, ignore_eos=True, seed=3, extra_args=extra
    )


def ids(llm: LLM, prompts: Any, params: Any) -> list[list[int]]:
    return [item.outputs[0].token_ids for item in llm.generate(prompts, params, use_tqdm=False)]


def keeps_parity(answer: list[int], parity: int) -> bool:
    return all((sum(answer[:n]) + parity - token) % 2 == 0 for n, token in enumerate(answer))


MIXED = [
    asking(),
    asking(scripted_parity=0),
    asking(scripted_gap=9),
    asking(1.0, scripted_sharpness=3.0),
    asking(1.0, scripted_parity=1, scripted_gap=4, scripted_sharpness=0.5),
    asking(1.0),
]


def test_a_row_gets_what_it_asked_for_and_its_batch_mates_do_not(llm: LLM) -> None:
    free = ids(llm, PROMPTS, [asking(), *[asking()] * 4, asking(1.0)])
    found = ids(llm, PROMPTS, MIXED)
    assert found[0] == free[0] and found[5] == free[5]
    assert keeps_parity(found[1], 0) and not keeps_parity(free[1], 0)
    assert keeps_parity(found[4], 1)
    line = PROMPTS[2] + found[2]
    assert all(line[n] not in line[n - 9 : n] for n in range(len(PROMPTS[2]), len(line)))


def test_the_same_tokens_alone_and_one_step_at_a_time_and_after_preemption(
    model: Path, board: Any, llm: LLM
) -> None:
    found = ids(llm, PROMPTS, MIXED)
    assert [ids(llm, p, m)[0] for p, m in zip(PROMPTS, MIXED, strict=True)] == found
    with LLM(str(model), board=board, **SMALL, async_scheduling=False) as slow:
        assert ids(slow, PROMPTS, MIXED) == found
    tight = {**SMALL, "num_gpu_blocks_override": 11, "block_size": 4, "max_model_len": 40}
    with LLM(str(model), board=board, **tight, enable_prefix_caching=False) as crowded:
        assert ids(crowded, PROMPTS, MIXED) == found
        assert crowded.engine.stats().preemptions > 0
    with LLM(str(model), board=board, **{**SMALL, "max_num_batched_tokens": 8}) as chunked:
        assert ids(chunked, PROMPTS, MIXED) == found


def test_steps_overlap_but_for_the_rows_that_need_tokens_on_the_host(llm: LLM) -> None:
    core = llm.engine.core
    assert core.depth == 2
    waits: list[bool] = []
    planned = core._late.planned
    core._late.planned = lambda plan: waits.append(planned(plan)) or waits[-1]
    try:
        ids(llm, PROMPTS[0], asking(scripted_gap=2))
        assert not any(waits), "a processor on the device lets steps overlap"
        ids(llm, PROMPTS[0], asking(scripted_parity=1))
        assert sum(waits) > 5
    finally:
        core._late.planned = planned


def test_greedy_rows_are_not_shown_to_a_processor_that_changes_no_maximum(llm: LLM) -> None:
    roster = llm.engine.inputs.processors
    assert [p.name for p in roster.asked(asking(scripted_sharpness=2))] == ["scripted-sharpness"]
    assert roster.serving(asking(scripted_sharpness=2)) == ()
    assert len(roster.serving(asking(1.0, scripted_sharpness=2))) == 1
    assert ids(llm, PROMPTS[1], asking(scripted_sharpness=2)) == ids(llm, PROMPTS[1], asking())


def test_a_processor_named_in_the_options_serves_every_request(model: Path, board: Any) -> None:
    named = ["scripted-parity", "scripted-gap"]
    with LLM(str(model), board=board, **SMALL, logits_processors=named) as llm:
        assert [p.name for p in llm.engine.inputs.processors.processors[:2]] == named
        found = ids(llm, PROMPTS, SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True))
        assert all(keeps_parity(answer, 0) for answer in found)
        assert all(a != b for line in found for a, b in itertools.pairwise(line))
        assert keeps_parity(ids(llm, PROMPTS[0], asking(scripted_parity=1))[0], 1)
        with pytest.raises(RequestError, match="scripted_parity"):
            llm.generate(PROMPTS[0], asking(scripted_parity=2), use_tqdm=False)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"scripted_parity": 2}, r"scripted_parity'\]=2 is not allowed: 0 or 1"),
        ({"scripted_gab": 2}, "no logits processor has this argument; did you mean 'scripted_gap'"),
        ({"zzz": 2}, "known arguments: build_it, fail_at, scripted_gap"),
    ],
)
def test_arguments_are_judged_before_a_request_is_queued(
    llm: LLM, extra: dict[str, Any], said: str
) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        llm.generate([PROMPTS[0], PROMPTS[1]], [asking(), asking(**extra)], use_tqdm=False)
    assert caught.value.field == "extra_args"
    assert not llm.engine.has_unfinished_requests()


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ("added", "logits processor 'failing' of pegboard-core .* ZeroDivisionError"),
        ("apply", "ZeroDivisionError: it was asked for"),
        ("shape", r"apply must return torch.float32 \[1, 259\].*\[1, 5\]"),
        ("nothing", "it returned a NoneType"),
        ("all", "no token is left to choose"),
        ("nan", "not finite numbers after"),
    ],
)
def test_a_processor_that_fails_ends_its_own_rows_alone(llm: LLM, stage: str, said: str) -> None:
    free = ids(llm, PROMPTS[:2], asking())
    outputs = llm.generate(
        [PROMPTS[0], PROMPTS[2], PROMPTS[1]],
        [asking(), asking(fail_at=stage), asking()],
        use_tqdm=False,
    )
    assert [outputs[0].outputs[0].token_ids, outputs[2].outputs[0].token_ids] == free
    failed = outputs[1].outputs[0]
    assert failed.finish_reason == "error"
    assert re.search(said, str(failed.error)), failed.error
    assert llm.engine.stats().used_blocks == 0


def test_one_that_cannot_forget_or_be_built_leaves_the_engine_alone(llm: LLM) -> None:
    free = ids(llm, PROMPTS[1], asking())
    assert ids(llm, PROMPTS[1], asking(fail_at="removed")) == free
    unbuilt = llm.generate(PROMPTS[1], asking(build_it=1), use_tqdm=False)[0]
    assert "OSError: a table is missing" in str(unbuilt.outputs[0].error)
    assert ids(llm, PROMPTS[1], asking()) == free


def test_what_every_request_needs_must_be_there_at_the_start(model: Path, board: Any) -> None:
    with pytest.raises(MissingPluginError, match=r"logits processor 'absent'.*logits_processors="):
        LLM(str(model), board=board, **SMALL, logits_processors=["absent"])
    with pytest.raises(PluginError, match="an argument of logits processor 'scripted-gap'"):
        LLM(str(model), board=board, **SMALL, logits_processors=["scripted_gap"])
    with pytest.raises(PluginError, match=r"logits processor 'unbuilt'.*a table is missing"):
        LLM(str(model), board=board, **SMALL, logits_processors=["unbuilt"])


def test_log_probabilities_are_the_models_own(llm: LLM) -> None:
    params = SamplingParams(
        temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=-1, extra_args={"scripted_gap": 50}
    )
    answer = llm.generate(PROMPTS[3], params, use_tqdm=False)[0].outputs[0]
    assert answer.logprobs is not None
    ranks = [
        entry[token].rank for entry, token in zip(answer.logprobs, answer.token_ids, strict=True)
    ]
    assert all(
        abs(sum(torch.tensor([e.logprob for e in entry.values()]).exp()) - 1) < 1e-3
        for entry in answer.logprobs
    )
    assert max(r for r in ranks if r is not None) > 1, "the processor changed nothing"
