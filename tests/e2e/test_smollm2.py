"""The demo model, in exact arithmetic, against the reference implementation in fp32."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pegboard import LLM, RequestOutput, SamplingParams
from pegboard_testkit.near_tie import Comparison, assert_same, compare
from pegboard_testkit.reference import reference_logprobs

CHOICES = Path(__file__).with_name("smollm2_choices.json")
TOKENS = 6


@pytest.fixture(scope="module")
def reference(smollm2_path: Path) -> Any:
    """The reference model, dequantised, on one thread pool with ours."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        str(smollm2_path.parent), gguf_file=smollm2_path.name, dtype=torch.float32
    ).eval()


@pytest.fixture(scope="module")
def exact(smollm2_path: Path) -> Iterator[LLM]:
    with LLM(str(smollm2_path), dtype="float32", max_model_len=512, max_num_seqs=8) as llm:
        yield llm


def check_outputs(model: Any, outputs: list[RequestOutput]) -> Comparison:
    """Compare output tokens and prompt logprobs of all `outputs`."""
    found = Comparison()
    for output in outputs:
        prompt, made = output.prompt_token_ids, output.outputs[0]
        rows = reference_logprobs(model, prompt + made.token_ids)
        assert made.logprobs is not None
        own = [
            entry[token].logprob for entry, token in zip(made.logprobs, made.token_ids, strict=True)
        ]
        ahead = rows[len(prompt) - 1 : -1]
        chosen = ahead[np.arange(len(ahead)), made.token_ids]
        found = found.add(compare(chosen.tolist(), ahead.max(axis=1).tolist(), own))
        if output.prompt_logprobs is not None:
            check_prompt(output, rows)
    return found


def check_prompt(output: RequestOutput, rows: np.ndarray) -> None:
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    for place, entry in enumerate(output.prompt_logprobs[1:], 1):
        assert entry is not None and output.prompt_token_ids[place] in entry
        for token, item in entry.items():
            assert item.logprob == pytest.approx(rows[place - 1, token], abs=1e-3)


def decode(llm: LLM, prompts: tuple[str, ...], tokens: int) -> list[RequestOutput]:
    params = SamplingParams(
        temperature=0.0, max_tokens=tokens, logprobs=0, prompt_logprobs=2, ignore_eos=True
    )
    return llm.generate(list(prompts), params, use_tqdm=False)


def test_greedy_tokens_are_those_that_the_reference_chose(
    exact: LLM, eight_prompts: tuple[str, ...]
) -> None:
    """Its tokens stand in a file, since to dequantise a whole model takes it a minute."""
    noted = json.loads(CHOICES.read_text())
    assert tuple(noted) == eight_prompts
    for output, prompt in zip(decode(exact, eight_prompts, TOKENS), noted, strict=True):
        made, wanted = output.outputs[0], noted[prompt]
        assert made.token_ids == wanted["token_ids"] and made.logprobs is not None
        own = [row[token].logprob for row, token in zip(made.logprobs, made.token_ids, strict=True)]
        assert own == pytest.approx(wanted["logprobs"], abs=1e-3)


@pytest.mark.accept
def test_the_noted_tokens_are_what_the_reference_chooses(
    reference: Any, exact: LLM, eight_prompts: tuple[str, ...]
) -> None:
    found = {prompt: choices(reference, exact, prompt) for prompt in eight_prompts}
    noted = json.loads(CHOICES.read_text())
    for prompt, wanted in found.items():
        assert noted[prompt]["token_ids"] == wanted["token_ids"], json.dumps(found)
        assert noted[prompt]["logprobs"] == pytest.approx(wanted["logprobs"], abs=1e-4)
        assert min(wanted["margins"]) > 1e-3, "a near tie: other tokens would be right too"


def choices(model: Any, llm: LLM, prompt: str) -> dict[str, list[Any]]:
    """The likeliest tokens after a prompt, one by one: ids, log-probabilities, and how far the next
    likeliest ones are."""
    ids = llm.get_tokenizer().encode(prompt)
    found: dict[str, list[Any]] = {"token_ids": [], "logprobs": [], "margins": []}
    for _ in range(TOKENS):
        row = reference_logprobs(model, ids)[-1]
        second, first = np.argsort(row)[-2:].tolist()
        found["token_ids"].append(first)
        found["logprobs"].append(round(float(row[first]), 6))
        found["margins"].append(float(row[first] - row[second]))
        ids = [*ids, first]
    return found


@pytest.mark.accept
def test_eight_languages_of_greedy_tokens_are_the_references(
    exact: LLM, reference: Any, eight_prompts: tuple[str, ...]
) -> None:
    found = check_outputs(reference, decode(exact, eight_prompts, 48))
    assert found.positions == 8 * 48
    assert_same(found)
    print(found)


def test_a_chat_answer_ends_at_the_models_end_id(exact: LLM) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    (output,) = exact.chat(question, SamplingParams(temperature=0.0, max_tokens=24), use_tqdm=False)
    assert "Paris" in output.outputs[0].text
    assert output.outputs[0].finish_reason == "stop"
    assert output.outputs[0].stop_reason is None


def test_refused_requests_leave_the_engine_working(exact: LLM) -> None:
    from pegboard.errors import RequestError

    for bad in ("", [[]], [10**9], "word " * 600):
        with pytest.raises(RequestError):
            exact.generate(bad, use_tqdm=False)
    (output,) = exact.generate("One, two,", SamplingParams(max_tokens=1), use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 1
