"""Any schedule gives the tokens that each request gets alone.

The oracle is the same engine with one request at a time, the whole prompt in one step and no prefix
cache; it scores the tokens that the schedule under test chose.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from pegboard import LLM, RequestOutput, SamplingParams
from pegboard.testing.checkpoints import write_tiny_model
from pegboard_testkit.alone import compare_with_alone
from pegboard_testkit.near_tie import assert_same

pytestmark = pytest.mark.usefixtures("one_thread")

CONTEXT = 256
LONGEST = 150
COUNTED = ("preemptions", "preempting", "quarters", "hits", "chunks")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), seed=3)


def open_engine(path: Path, **options: Any) -> LLM:
    common = {"dtype": "float32", "max_model_len": CONTEXT, "max_num_seqs": 8}
    return LLM(str(path), **{**common, **options})


@pytest.fixture(scope="module")
def alone(tiny: Path) -> Iterator[LLM]:
    options = {"enable_prefix_caching": False, "num_gpu_blocks_override": 64}
    with open_engine(tiny, max_num_batched_tokens=CONTEXT, **options) as llm:
        yield llm


@attrs.frozen
class Load:
    """Requests, and the schedule they are put through."""

    prompts: list[list[int]]
    lengths: list[int]
    block_size: int
    budget: int
    caching: bool
    scarce: bool
    """A quarter of the blocks that the requests would like to have."""

    @property
    def sizes(self) -> list[int]:
        """Tokens of each request, prompt and answer."""
        pairs = zip(self.prompts, self.lengths, strict=True)
        return [len(prompt) + length for prompt, length in pairs]

    @property
    def blocks(self) -> tuple[int, int]:
        """Those there are beside the null block, and those that the requests would like to have.

        A quarter, unless the longest request needs more.
        """
        each = [-(-size // self.block_size) for size in self.sizes]
        return (max(sum(each) // 4, *each) if self.scarce else sum(each)), sum(each)


@st.composite
def loads(draw: st.DrawFn) -> Load:
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    scarce = draw(st.booleans())
    count = draw(st.integers(6, 8) if scarce else st.integers(2, 6))
    shortest = LONGEST // 3 if scarce else 1  # so that four of them need more than the longest
    lengths = random.integers(shortest, LONGEST, size=count)
    prompts = [random.integers(3, 259, size=length).tolist() for length in lengths]
    if draw(st.booleans()):  # shared beginnings, so that the prefix cache has something to find
        prompts += [[*prompts[0], *prompts[1][:40]]]
    return Load(
        draw(st.permutations(prompts)),
        [draw(st.integers(1, 40)) for _ in prompts],
        block_size=draw(st.sampled_from([8, 16, 32])),
        budget=draw(st.integers(16, LONGEST) | st.integers(16, 8192)),
        caching=draw(st.booleans()),
        scarce=scarce,
    )


def run(path: Path, load: Load, counts: dict[str, int]) -> list[RequestOutput]:
    blocks, wanted = load.blocks
    options = {
        "max_model_len": max(load.sizes),
        "block_size": load.block_size,
        "max_num_batched_tokens": load.budget,
        "enable_prefix_caching": load.caching,
        "num_gpu_blocks_override": blocks + 1,
    }
    params = [
        SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, logprobs=0)
        for length in load.lengths
    ]
    with open_engine(path, **options) as llm:
        outputs = llm.generate(load.prompts, params, use_tqdm=False)
        again = llm.generate(load.prompts, params, use_tqdm=False)  # now with a warm cache
        stats = llm.engine.stats()
        llm.engine.core.scheduler.check()
    counts["quarters"] += blocks == wanted // 4
    counts["preempting"] += stats.preemptions > 0
    counts["preemptions"] += stats.preemptions
    counts["hits"] += stats.cache.hit_tokens
    counts["chunks"] += sum(len(prompt) > load.budget for prompt in load.prompts)
    return outputs + again


def check_schedules(tiny: Path, alone: LLM, examples: int) -> dict[str, int]:
    counts = dict.fromkeys((*COUNTED, "examples"), 0)

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(load=loads())
    def check(load: Load) -> None:
        counts["examples"] += 1
        assert_same(compare_with_alone(alone, run(tiny, load, counts)))

    check()
    return counts


def test_random_schedules_give_the_same_tokens(tiny: Path, alone: LLM) -> None:
    counts = check_schedules(tiny, alone, examples=12)
    assert min(counts.values()) > 0, counts


@pytest.mark.accept
@pytest.mark.timeout(3600)
def test_many_random_schedules_give_the_same_tokens(tiny: Path, alone: LLM) -> None:
    examples = 150
    counts = check_schedules(tiny, alone, examples)
    assert min(counts.values()) > 0, counts
    assert counts["quarters"] >= examples // 5, f"seldom a quarter of the blocks: {counts}"
    assert counts["preempting"] >= counts["quarters"] // 2, f"seldom a preemption: {counts}"
    print(counts)


@pytest.mark.parametrize("caching", [True, False])
def test_preempted_requests_give_the_same_tokens(tiny: Path, alone: LLM, caching: bool) -> None:
    draws = np.random.default_rng(1)
    prompts = [draws.integers(3, 259, size=60).tolist() for _ in range(6)]
    counts = dict.fromkeys(COUNTED, 0)
    load = Load(prompts, [90] * 6, 8, 64, caching, scarce=True)
    assert_same(compare_with_alone(alone, run(tiny, load, counts)))
    assert counts["preemptions"] > 0, "nothing was preempted"


def sampled(
    path: Path, prompts: list[list[int]], params: SamplingParams, **options: Any
) -> list[Any]:
    with open_engine(path, num_gpu_blocks_override=64, **options) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
    return [[item.token_ids for item in output.outputs] for output in outputs]


def test_o05_seeded_draws_do_not_depend_on_batch_mates_caching_or_budget(tiny: Path) -> None:
    params = SamplingParams(n=4, seed=11, temperature=1.0, max_tokens=12, ignore_eos=True)
    prompt = list(range(10, 50))
    mates = [[7] * 30, list(range(100, 160))]
    (alone,) = sampled(tiny, [prompt], params)
    assert len({tuple(tokens) for tokens in alone}) == 4, "the four sequences are all different"
    for options in ({}, {"enable_prefix_caching": False}, {"max_num_batched_tokens": 16}):
        assert sampled(tiny, [mates[0], prompt, mates[1]], params, **options)[1] == alone


def test_o05_one_sequence_equals_the_first_of_several(tiny: Path) -> None:
    several = SamplingParams(n=3, seed=4, max_tokens=8, ignore_eos=True)
    one = SamplingParams(n=1, seed=4, max_tokens=8, ignore_eos=True)
    prompt = list(range(10, 40))
    assert sampled(tiny, [prompt], one)[0][0] == sampled(tiny, [prompt], several)[0][0]


def test_o05_equal_prompts_of_a_list_with_one_seed_get_equal_answers(tiny: Path) -> None:
    params = SamplingParams(seed=4, max_tokens=8, ignore_eos=True)
    answers = sampled(tiny, [[9, 8, 7]] * 4, params)
    assert answers == [answers[0]] * 4


def test_requests_without_a_seed_differ_and_repeat_with_the_engines_seed(tiny: Path) -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    first = sampled(tiny, [[9, 8, 7]] * 3, params, seed=1)
    assert first == sampled(tiny, [[9, 8, 7]] * 3, params, seed=1)
    assert first != sampled(tiny, [[9, 8, 7]] * 3, params, seed=2)
    assert len({tuple(answer[0]) for answer in first}) == 3


@pytest.mark.parametrize("budget", [16, 64, 256])
@pytest.mark.parametrize("caching", [True, False])
def test_prompt_logprobs_are_right_under_chunking_and_caching(
    tiny: Path, alone: LLM, budget: int, caching: bool
) -> None:
    prompt = np.random.default_rng(2).integers(3, 259, size=120).tolist()
    params = SamplingParams(max_tokens=1, prompt_logprobs=3)
    (reference,) = alone.generate(prompt, params, use_tqdm=False)
    options = {"max_num_batched_tokens": budget, "enable_prefix_caching": caching}
    with open_engine(tiny, num_gpu_blocks_override=64, **options) as llm:
        for _ in range(2):
            (output,) = llm.generate(prompt, params, use_tqdm=False)
            assert output.prompt_logprobs is not None and reference.prompt_logprobs is not None
            assert len(output.prompt_logprobs) == len(prompt)
            for ours, theirs in zip(
                output.prompt_logprobs[1:], reference.prompt_logprobs[1:], strict=True
            ):
                assert ours is not None and theirs is not None
                for token in ours.keys() & theirs.keys():
                    assert ours[token].logprob == pytest.approx(theirs[token].logprob, abs=1e-3)
