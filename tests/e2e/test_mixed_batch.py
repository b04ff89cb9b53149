"""Requests with all kinds of parameters in one batch: each gets what it gets alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pegboard import LLM, RequestOutput, SamplingParams
from pegboard.testing.checkpoints import write_tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

TOKENS = 14
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"seed": 3},
    "hot": {"seed": 3, "temperature": 1.8},
    "three sequences": {"n": 3, "seed": 5},
    "likeliest five": {"seed": 6, "top_k": 5},
    "nucleus": {"seed": 6, "top_p": 0.5},
    "not unlikely": {"seed": 6, "min_p": 0.2},
    "all filters": {"seed": 7, "top_k": 20, "top_p": 0.8, "min_p": 0.05, "temperature": 1.3},
    "repetition": {"temperature": 0.0, "repetition_penalty": 1.9},
    "presence": {"temperature": 0.0, "presence_penalty": 2.0},
    "frequency": {"temperature": 0.0, "frequency_penalty": 2.0},
    "bias up": {"temperature": 0.0, "logit_bias": {11: 100.0}},
    "bias down": {"temperature": 0.0, "logit_bias": dict.fromkeys(range(130), -100.0)},
    "a few allowed": {"seed": 8, "allowed_token_ids": [20, 21, 22]},
    "one allowed, sampled twice": {"seed": 8, "allowed_token_ids": [33], "n": 2},
    "scored": {"seed": 9, "logprobs": 4, "prompt_logprobs": 2},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), seed=6)


def opened(folder: Path, **options: Any) -> LLM:
    common = {"max_model_len": 128, "max_num_seqs": 32, "num_gpu_blocks_override": 300}
    return LLM(str(folder), dtype="float32", **{**common, **options})


def prompt(number: int) -> list[int]:
    draws = np.random.default_rng(number)
    return draws.integers(3, 259, size=5 + 7 * (number % 6)).tolist()


def request(name: str) -> tuple[list[int], SamplingParams]:
    """Prompt and parameters of one kind; the end is left to the length."""
    settings = {"max_tokens": TOKENS, "ignore_eos": True, **KINDS[name]}
    return prompt(list(KINDS).index(name)), SamplingParams(**settings)


def tokens(output: RequestOutput) -> list[list[int]]:
    return [list(item.token_ids) for item in output.outputs]


@pytest.fixture(scope="module")
def alone(folder: Path, one_thread: None) -> dict[str, RequestOutput]:
    """Every kind with the engine for itself."""
    with opened(folder, enable_prefix_caching=False) as llm:
        found = {}
        for name in KINDS:
            ids, params = request(name)
            (found[name],) = llm.generate(ids, params, use_tqdm=False)
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"enable_prefix_caching": False, "block_size": 8},
        {"max_num_batched_tokens": 32},
        {"max_num_seqs": 3},
        {"num_gpu_blocks_override": 12, "block_size": 16},
    ],
    ids=["together", "no cache", "small budget", "three at a time", "few blocks"],
)
def test_every_kind_gets_in_a_batch_what_it_gets_alone(
    folder: Path, alone: dict[str, RequestOutput], options: dict[str, Any]
) -> None:
    prompts, params = zip(*map(request, KINDS), strict=True)
    with opened(folder, **options) as llm:
        outputs = llm.generate(list(prompts), list(params), use_tqdm=False)
        stats = llm.engine.stats()
    if options.get("num_gpu_blocks_override") is not None:
        assert stats.preemptions > 0, "nothing was preempted"
    for name, output in zip(KINDS, outputs, strict=True):
        assert tokens(output) == tokens(alone[name]), name
        assert [item.finish_reason for item in output.outputs] == ["length"] * len(output.outputs)


def test_the_order_in_the_batch_changes_nothing(
    folder: Path, alone: dict[str, RequestOutput]
) -> None:
    names = list(KINDS)[::-1]
    prompts, params = zip(*map(request, names), strict=True)
    with opened(folder) as llm:
        outputs = llm.generate(list(prompts), list(params), use_tqdm=False)
    for name, output in zip(names, outputs, strict=True):
        assert tokens(output) == tokens(alone[name]), name


def test_scores_are_those_of_the_request_alone(
    folder: Path, alone: dict[str, RequestOutput]
) -> None:
    prompts, params = zip(*map(request, KINDS), strict=True)
    with opened(folder) as llm:
        outputs = llm.generate(list(prompts), list(params), use_tqdm=False)
    expected = alone["scored"]
    output = outputs[list(KINDS).index("scored")]
    assert [o.outputs[0].logprobs is None for o in outputs].count(False) == 1
    for ours, theirs in (
        (output.outputs[0].logprobs, expected.outputs[0].logprobs),
        (output.prompt_logprobs, expected.prompt_logprobs),
    ):
        assert ours is not None and theirs is not None and len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert (one is None) == (other is None)
            for token in one or {}:
                assert other is not None
                assert one[token].logprob == pytest.approx(other[token].logprob, abs=1e-4)
    total = sum(
        entry[token].logprob
        for entry, token in zip(
            output.outputs[0].logprobs or [], output.outputs[0].token_ids, strict=True
        )
    )
    assert output.outputs[0].cumulative_logprob == pytest.approx(total)


def test_each_parameter_does_what_it_says(alone: dict[str, RequestOutput]) -> None:
    made = {name: tokens(output) for name, output in alone.items()}
    assert made["bias up"] == [[11] * TOKENS]
    assert all(token >= 130 for token in made["bias down"][0])
    assert set(made["a few allowed"][0]) == {20, 21, 22}
    assert made["one allowed, sampled twice"] == [[33] * TOKENS] * 2
    assert len({tuple(item) for item in made["three sequences"]}) == 3


@pytest.mark.parametrize("name", ["repetition", "presence", "frequency"])
def test_a_penalty_makes_repetition_rarer(folder: Path, name: str) -> None:
    """The same prompts with and without, where the tiny model answers in a circle."""
    settings: dict[str, Any] = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True}
    prompts = [prompt(number) for number in range(20)]
    with opened(folder) as llm:
        plain = llm.generate(prompts, SamplingParams(**settings), use_tqdm=False)
        varied = llm.generate(prompts, SamplingParams(**settings | KINDS[name]), use_tqdm=False)
    distinct = [
        (len(set(tokens(before)[0])), len(set(tokens(after)[0])))
        for before, after in zip(plain, varied, strict=True)
    ]
    circling = [(before, after) for before, after in distinct if before < 30]
    assert circling, "no prompt is answered in a circle"
    assert all(after > before for before, after in circling), circling
