"""The oracles notice what they are for: other tokens, other log-probabilities, other weights."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pegboard import LLM, RequestOutput, SamplingParams
from pegboard.testing.checkpoints import write_tiny_model
from pegboard_testkit.alone import compare_with_alone
from pegboard_testkit.near_tie import assert_same
from pegboard_testkit.reference import compare_distributions

PROMPTS = [[5, 6, 7, 8, 9], [40, 3]]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"), seed=4)
    options = {"max_model_len": 64, "num_gpu_blocks_override": 32}
    with LLM(str(folder), dtype="float32", enable_prefix_caching=False, **options) as llm:
        yield llm


def answers(llm: LLM, width: int) -> list[RequestOutput]:
    params = SamplingParams(
        temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=width, prompt_logprobs=width
    )
    return llm.generate(PROMPTS, params, use_tqdm=False)


def test_an_engine_agrees_with_itself_alone(llm: LLM) -> None:
    found = compare_with_alone(llm, answers(llm, 0))
    assert_same(found)
    assert found.positions == 12


def test_another_token_is_noticed(llm: LLM) -> None:
    outputs = answers(llm, 0)
    made = outputs[1].outputs[0]
    assert made.logprobs is not None
    old, other = made.token_ids[2], (made.token_ids[2] + 1) % 256
    made.token_ids[2] = other
    made.logprobs[2][other] = made.logprobs[2][old]
    with pytest.raises(AssertionError):
        assert_same(compare_with_alone(llm, outputs))


def own_logits(llm: LLM, shift: float) -> Any:
    """The engine as a reference of its own, off by `shift` at one token."""

    def model(ids: torch.Tensor) -> Any:
        params = SamplingParams(max_tokens=1, logprobs=-1, prompt_logprobs=-1)
        (output,) = llm.generate(ids[0].tolist(), params, use_tqdm=False)
        assert output.prompt_logprobs is not None and output.outputs[0].logprobs is not None
        entries = [*output.prompt_logprobs[1:], *output.outputs[0].logprobs]
        rows = [[entry[token].logprob for token in sorted(entry)] for entry in entries if entry]
        logits = torch.tensor(rows)
        logits[:, 7] += shift
        return SimpleNamespace(logits=logits[None])

    return model


def test_distributions_are_compared_value_by_value(llm: LLM) -> None:
    outputs = answers(llm, -1)
    assert_same(compare_distributions(own_logits(llm, 0.0), outputs, 1e-4))
    with pytest.raises(AssertionError):
        compare_distributions(own_logits(llm, 0.5), outputs, 1e-4)
