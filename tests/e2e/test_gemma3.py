"""The real Gemma 3 model (270 million parameters, mixed block types), in exact arithmetic, against
the reference implementation in fp32, within its window of 512 tokens and far beyond it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from pegboard import LLM, RequestOutput, SamplingParams
from pegboard_testkit.near_tie import Comparison, assert_same, compare

pytestmark = [pytest.mark.accept, pytest.mark.network, pytest.mark.timeout(1800)]

PROSE = Path(__file__).with_name("prose.txt")
WINDOW, BLOCK = 512, 16
LENGTHS = (600, 1000, 1500, 2000)
SLICE = 64
"""Positions whose logits over 262,144 tokens are held at once."""


@pytest.fixture(scope="module")
def exact(gemma_path: Path) -> Iterator[LLM]:
    with LLM(
        str(gemma_path),
        dtype="float32",
        max_model_len=2048,
        max_num_seqs=8,
        max_num_batched_tokens=400,
        enable_prefix_caching=False,
    ) as llm:
        yield llm


@pytest.fixture(scope="module")
def reference(gemma_path: Path) -> Any:
    """The reference model, dequantised."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        str(gemma_path.parent), gguf_file=gemma_path.name, dtype=torch.float32
    ).eval()


@attrs.frozen(eq=False)
class Scores:
    """The reference's log-probabilities along a sequence; entry i is about token i + 1."""

    chosen: np.ndarray
    best: np.ndarray


@torch.no_grad()
def reference_scores(model: Any, ids: Sequence[int]) -> Scores:
    hidden = model.model(torch.tensor([list(ids)])).last_hidden_state[0, :-1]
    chosen, best = [], []
    for part, following in zip(
        hidden.split(SLICE), torch.tensor(ids[1:]).split(SLICE), strict=True
    ):
        logits = model.lm_head(part).double()
        total = logits.logsumexp(-1)
        chosen.append(logits.gather(1, following[:, None])[:, 0] - total)
        best.append(logits.amax(-1) - total)
    return Scores(torch.cat(chosen).numpy(), torch.cat(best).numpy())


def check(model: Any, outputs: Sequence[RequestOutput]) -> Comparison:
    """Compare tokens and log-probabilities of prompts and outputs."""
    found = Comparison()
    for output in outputs:
        prompt, made = output.prompt_token_ids, output.outputs[0]
        scores = reference_scores(model, prompt + made.token_ids)
        assert made.logprobs is not None and output.prompt_logprobs is not None
        entries = [*output.prompt_logprobs[1:], *made.logprobs]
        tokens = [*prompt[1:], *made.token_ids]
        own = [entry[token].logprob for entry, token in zip(entries, tokens, strict=True) if entry]
        assert np.abs(np.array(own) - scores.chosen).max() <= 1e-3
        ahead = slice(len(prompt) - 1, None)
        found = found.add(
            compare(
                scores.chosen[ahead].tolist(),
                scores.best[ahead].tolist(),
                own[len(prompt) - 1 :],
            )
        )
    return found


def decode(llm: LLM, prompts: Sequence[Any], tokens: int = 48) -> list[RequestOutput]:
    params = SamplingParams(
        temperature=0.0, max_tokens=tokens, logprobs=0, prompt_logprobs=0, ignore_eos=True
    )
    return llm.generate(list(prompts), params, use_tqdm=False)


def long_prompt(llm: LLM, tokens: int) -> list[int]:
    text = PROSE.read_text()
    ids = llm.get_tokenizer().encode(text + text)
    assert len(ids) >= tokens
    return list(ids[:tokens])


def test_the_layers_form_groups_of_both_kinds(exact: LLM) -> None:
    kinds = [(group.spec.kind, len(group.slots)) for group in exact.cache.groups]
    assert sum(count for kind, count in kinds if kind == "sliding") == 15
    assert sum(count for kind, count in kinds if kind == "full") == 3


def test_eight_languages_of_greedy_tokens_are_the_references(
    exact: LLM, reference: Any, eight_prompts: tuple[str, ...]
) -> None:
    outputs = decode(exact, eight_prompts)
    assert all(output.prompt_token_ids[0] == 2 for output in outputs), "BOS comes first, once"
    assert all(output.prompt_token_ids[1] != 2 for output in outputs)
    found = check(reference, outputs)
    assert found.positions == 8 * 48
    assert_same(found)
    print(found)


def test_a_prompt_far_beyond_the_window_is_continued_as_the_reference_does(
    exact: LLM, reference: Any
) -> None:
    found = check(reference, decode(exact, [long_prompt(exact, 1500)]))
    assert found.positions == 48
    assert_same(found)
    print(found)


def test_the_cache_of_windows_stays_flat_beyond_them(exact: LLM) -> None:
    """Blocks in use after so many tokens of one prompt, in steps of 100 tokens."""
    groups = [group.spec.kind for group in exact.cache.groups]
    full, sliding = groups.count("full"), groups.count("sliding")
    prompt = long_prompt(exact, max(LENGTHS))
    with LLM(
        exact.config.model,
        dtype="float32",
        max_model_len=2048,
        max_num_seqs=1,
        max_num_batched_tokens=100,
        async_scheduling=False,  # else the next chunk holds blocks already
    ) as llm:
        llm.engine.add_request("one", prompt, SamplingParams(max_tokens=2, ignore_eos=True))
        used = {}
        for tokens in range(100, max(LENGTHS) + 1, 100):
            llm.engine.step()
            used[tokens] = llm.engine.stats().used_blocks
    print(f"\ntokens  blocks of {sliding} sliding groups  of {full} full group  in all")
    for tokens in LENGTHS:
        of_full = full * -(-tokens // BLOCK)
        of_sliding = used[tokens] - of_full
        print(f"{tokens:6}  {of_sliding:26}  {of_full:15}  {used[tokens]:6}")
        most = sliding * (-(-(WINDOW - 1) // BLOCK) + 1)
        assert of_sliding <= most, f"{of_sliding} blocks for the windows after {tokens} tokens"
    assert used[2000] - used[600] <= full * (1400 // BLOCK + 1) + sliding
