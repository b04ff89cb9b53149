"""Any schedule gives the tokens that each request gets alone, for models with sliding windows.

Prompts reach far beyond the windows, so that blocks leave them under way, hits begin in the middle
of tables, and preempted requests come back without their first blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
import transformers

from pegboard import LLM, RequestOutput, SamplingParams
from pegboard_testkit.alone import compare_with_alone
from pegboard_testkit.near_tie import assert_same

pytestmark = pytest.mark.usefixtures("one_thread")

CONTEXT = 256
BLOCK = 8
COUNTED = ("preemptions", "preempting", "quarters", "hits", "chunks", "overlapped")
FULL, SLIDING = "full_attention", "sliding_attention"
BASE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.25,
    "pad_token_id": 0,
}


def gemma2() -> Any:
    config = transformers.Gemma2Config(**BASE, num_hidden_layers=4, sliding_window=11)
    return transformers.Gemma2ForCausalLM(config)


def gemma3() -> Any:
    kinds = [SLIDING, SLIDING, FULL, SLIDING, SLIDING, FULL]
    config = transformers.Gemma3TextConfig(
        **BASE, num_hidden_layers=6, layer_types=kinds, sliding_window=24
    )
    return transformers.Gemma3ForCausalLM(config)


def llama() -> Any:
    config = transformers.LlamaConfig(**BASE, num_hidden_layers=2)
    return transformers.LlamaForCausalLM(config)


def mistral() -> Any:
    config = transformers.MistralConfig(**BASE, num_hidden_layers=2, sliding_window=16)
    return transformers.MistralForCausalLM(config)


MODELS: dict[str, Callable[[], Any]] = {
    "gemma2": gemma2,
    "gemma3": gemma3,
    "mistral": mistral,
    "llama": llama,
}


def open_engine(path: Path, **options: Any) -> LLM:
    common = {"dtype": "float32", "max_model_len": CONTEXT, "max_num_seqs": 8, "block_size": BLOCK}
    return LLM(str(path), **{**common, **options})


@attrs.frozen(eq=False)
class Model:
    """A checkpoint, and an engine that serves one request at a time without a cache."""

    path: Path
    alone: LLM

    def blocks(self, tokens: int, budget: int) -> int:
        """What a request of so many tokens holds at most."""
        groups = self.alone.cache.groups
        return sum(group.spec.blocks_for(tokens, group.block_size, budget) for group in groups)


OFTEN = ("gemma3", "llama")
"""What the quick tests try; the others only have windows and layers of the same kinds."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(n, marks=() if n in OFTEN else pytest.mark.accept) for n in MODELS],
)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Model]:
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(2)
    MODELS[request.param]().save_pretrained(folder)
    options = {"enable_prefix_caching": False, "num_gpu_blocks_override": 400}
    with open_engine(folder, max_num_batched_tokens=CONTEXT, **options) as llm:
        yield Model(folder, llm)


def check(model: Model, outputs: Sequence[RequestOutput]) -> None:
    assert_same(compare_with_alone(model.alone, outputs))


@attrs.frozen
class Load:
    """Requests, and the schedule they are put through."""

    prompts: list[list[int]]
    lengths: list[int]
    budget: int
    caching: bool
    scarce: bool


def random_load(seed: int) -> Load:
    draws = np.random.default_rng(seed)
    scarce = bool(draws.random() < 0.5)
    sizes, answers, fewest = (1, 150), (1, 40), 2
    if scarce:  # four requests need more than the longest, and answers outgrow their room
        sizes, answers, fewest = ((30, 100) if seed % 3 else (4, 16)), (40, 90), 7
    lengths = draws.integers(*sizes, size=draws.integers(fewest, fewest + 4))
    prompts = [draws.integers(3, 96, size=length).tolist() for length in lengths]
    prompts.append([*prompts[0], *prompts[1][:30]])
    return Load(
        prompts,
        [int(length) for length in draws.integers(*answers, size=len(prompts))],
        budget=int(2 ** draws.uniform(4, 13)),
        caching=bool(draws.random() < 0.7),
        scarce=scarce,
    )


def run(
    model: Model,
    load: Load,
    counts: dict[str, int],
    priority: list[int] | None = None,
    **settings: Any,
) -> list[RequestOutput]:
    """Run all requests twice, the second time with what the first left in the cache."""
    pairs = zip(load.prompts, load.lengths, strict=True)
    sizes = [len(prompt) + length for prompt, length in pairs]
    each = [model.blocks(size, load.budget) for size in sizes]
    blocks = max(sum(each) // 4, *each) if load.scarce else sum(each)
    params = [
        SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, logprobs=0)
        for length in load.lengths
    ]
    options = {
        "max_model_len": max(sizes),
        "max_num_batched_tokens": load.budget,
        "enable_prefix_caching": load.caching,
        "num_gpu_blocks_override": 1 + blocks,
        **settings,
    }
    with open_engine(model.path, **options) as llm:
        outputs = llm.generate(load.prompts, params, use_tqdm=False, priority=priority)
        outputs += llm.generate(load.prompts, params, use_tqdm=False, priority=priority)
        stats = llm.engine.stats()
        llm.engine.core.scheduler.check()
        counts["overlapped"] += llm.engine.core.overlapped
    assert stats.used_blocks == 0, "blocks are held though nothing runs"
    counts["quarters"] += blocks == sum(each) // 4
    counts["preempting"] += stats.preemptions > 0
    counts["preemptions"] += stats.preemptions
    counts["hits"] += stats.cache.hit_tokens
    counts["chunks"] += sum(len(prompt) > load.budget for prompt in load.prompts)
    return outputs


def check_loads(model: Model, seeds: range) -> dict[str, int]:
    counts = dict.fromkeys(COUNTED, 0)
    for seed in seeds:
        check(model, run(model, random_load(seed), counts))
    return counts


def test_random_schedules_give_the_same_tokens(model: Model) -> None:
    counts = check_loads(model, range(3))
    assert counts["hits"] > 0 and counts["chunks"] > 0, counts


@pytest.mark.accept
@pytest.mark.timeout(3600)
def test_many_random_schedules_give_the_same_tokens(model: Model) -> None:
    seeds = range(4, 60)
    counts = check_loads(model, seeds)
    assert min(counts.values()) > 0, counts
    assert counts["quarters"] >= len(seeds) // 5, f"seldom a quarter of the blocks: {counts}"
    # Where all layers have windows, a request beyond its window grows no more.
    grows = any(group.spec.kind == "full" for group in model.alone.cache.groups)
    share = 2 if grows else 10
    assert counts["preempting"] >= counts["quarters"] // share, f"seldom a preemption: {counts}"
    print(counts)


def test_preempted_requests_give_the_same_tokens(model: Model) -> None:
    """All are admitted while they are short, then they grow out of their room."""
    draws = np.random.default_rng(1)
    prompts = [draws.integers(3, 96, size=10).tolist() for _ in range(5)]
    counts = dict.fromkeys(COUNTED, 0)
    load = Load(prompts, [70] * 5, budget=16, caching=True, scarce=True)
    check(model, run(model, load, counts))
    assert counts["preemptions"] > 0, "nothing was preempted"


QUICK = {("gemma3", "priority", True), ("gemma3", "lpm", True), ("llama", "fcfs", True)}


@pytest.mark.parametrize(
    ("model", "policy", "overlap"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.accept)
        for case in product(MODELS, ["fcfs", "priority", "lpm"], [True, False])
    ],
    indirect=["model"],
)
def test_every_policy_gives_the_same_tokens_with_and_without_cache(
    model: Model, policy: str, overlap: bool
) -> None:
    """Under shortage of blocks, steps overlapped or not; the cache on, and off where it may be."""
    draws = np.random.default_rng(6)
    shared = draws.integers(3, 96, size=40).tolist()
    prompts = [[*shared, *draws.integers(3, 96, size=4 + i).tolist()] for i in range(5)]
    ranks = [3, 1, 2, 1, 0] if policy == "priority" else None
    counts = dict.fromkeys(COUNTED, 0)
    for caching in [True] if policy == "lpm" else [True, False]:
        load = Load(prompts, [40] * 5, budget=32, caching=caching, scarce=True)
        settings = {"scheduling_policy": policy, "async_scheduling": overlap}
        check(model, run(model, load, counts, ranks, **settings))
    assert counts["preemptions"] > 0 and counts["hits"] > 0, counts
    assert (counts["overlapped"] > 0) == overlap, counts


def test_a_hit_far_beyond_the_window_continues_from_what_is_left_of_it(model: Model) -> None:
    draws = np.random.default_rng(2)
    beginning = draws.integers(3, 96, size=160).tolist()
    prompts = [beginning + draws.integers(3, 96, size=length).tolist() for length in (3, 20, 40)]
    params = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True, logprobs=0)
    with open_engine(model.path, num_gpu_blocks_override=400, max_num_batched_tokens=48) as llm:
        llm.generate(beginning, params, use_tqdm=False)
        outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [output.num_cached_tokens for output in outputs] == [160] * 3
    check(model, outputs)


def test_blocks_behind_the_window_are_given_back(model: Model) -> None:
    """The blocks in use grow only by those of layers with full attention."""
    draws = np.random.default_rng(3)
    prompt = draws.integers(3, 96, size=100).tolist()
    groups = model.alone.cache.groups
    full = sum(group.spec.kind == "full" for group in groups)
    local = [group.spec.window for group in groups if group.spec.kind == "sliding"]
    assert bool(local) != (model.path.name.startswith("llama"))
    seen = []
    with open_engine(model.path, num_gpu_blocks_override=400, max_num_batched_tokens=32) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=120, ignore_eos=True)
        llm.engine.add_request("one", prompt, params)
        while llm.engine.has_unfinished_requests():
            llm.engine.step()
            seen.append(llm.engine.stats().used_blocks)
    decoding = seen[-110:-1]
    most = sum(-(-(window - 1) // BLOCK) + 1 for window in local)
    for steps, used in enumerate(decoding, len(prompt) + 120 - 110):
        assert used <= full * (steps // BLOCK + 2) + most, f"{used} blocks after {steps} tokens"
