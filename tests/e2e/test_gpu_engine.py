"""The whole engine on a GPU gives the tokens of the CPU: recorded steps, mixed batches, preemption.

The oracle is the engine on the CPU in float32, one request at a time; it scores the tokens that the
GPU chose.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pegboard import LLM, RequestOutput, SamplingParams
from pegboard.testing.checkpoints import write_tiny_model
from pegboard_testkit.alone import compare_with_alone
from pegboard_testkit.near_tie import assert_same

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

SHAPE = {"hidden": 128, "heads": 4, "kv_heads": 2, "head_size": 64, "intermediate": 192}
LONG, CONTEXT = 300, 512


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), seed=3, scale=0.15, **SHAPE)


def open_engine(path: Path, **options: Any) -> LLM:
    common = {"dtype": "float32", "max_model_len": CONTEXT, "num_gpu_blocks_override": 600}
    return LLM(str(path), **{**common, "platform": "cuda", **options})


@pytest.fixture(scope="module")
def alone(tiny: Path) -> Iterator[LLM]:
    options: dict[str, Any] = {"enable_prefix_caching": False, "platform": "cpu"}
    with open_engine(tiny, max_num_batched_tokens=CONTEXT, **options) as llm:
        yield llm


def prompts(count: int, seed: int = 0, longest: int = LONG) -> list[list[int]]:
    draws = np.random.default_rng(seed)
    return [draws.integers(3, 259, size=draws.integers(1, longest)).tolist() for _ in range(count)]


def greedy(length: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, logprobs=0)


def facts(llm: LLM) -> dict[str, Any]:
    return llm.engine.core.executor.facts()


def generate(llm: LLM, requests: list[list[int]], params: Any) -> list[RequestOutput]:
    found = llm.generate(requests, params, use_tqdm=False)
    llm.engine.core.scheduler.check()
    return found


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 9, 16])
@pytest.mark.parametrize("overlap", [None, False])
def test_greedy_tokens_are_those_of_the_cpu_at_every_edge_of_the_buckets(
    tiny: Path, alone: LLM, rows: int, overlap: bool | None
) -> None:
    with open_engine(tiny, max_num_seqs=16, async_scheduling=overlap) as llm:
        outputs = generate(llm, prompts(rows, seed=rows), greedy(24))
        assert facts(llm)["replays"] > 0, "nothing was replayed"
    assert_same(compare_with_alone(alone, outputs))


def test_without_recordings_the_tokens_are_the_same(tiny: Path, alone: LLM) -> None:
    with open_engine(tiny, enforce_eager=True) as llm:
        outputs = generate(llm, prompts(9), greedy(24))
        assert facts(llm)["recordings"] == 0
    assert_same(compare_with_alone(alone, outputs))


@pytest.mark.parametrize("budget", [16, 100, 2048])
@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_mixed_batches_and_chunks_give_the_tokens_of_the_cpu(
    tiny: Path, alone: LLM, budget: int, block_size: int
) -> None:
    lengths = np.random.default_rng(budget).integers(3, 40, size=14).tolist()
    options = {"max_num_batched_tokens": budget, "block_size": block_size, "max_num_seqs": 8}
    with open_engine(tiny, **options) as llm:
        outputs = generate(llm, prompts(14, seed=budget), [greedy(n) for n in lengths])
        again = generate(llm, prompts(14, seed=budget), [greedy(n) for n in lengths])
        assert facts(llm)["replays"] > 0
        assert llm.engine.stats().cache.hit_tokens > 0
    assert_same(compare_with_alone(alone, [*outputs, *again]))


def test_preempted_requests_give_the_tokens_of_the_cpu(tiny: Path, alone: LLM) -> None:
    requests = [[*prompt, *range(10, 70)] for prompt in prompts(6, longest=10)]
    with open_engine(tiny, num_gpu_blocks_override=34, max_num_seqs=6) as llm:
        outputs = generate(llm, requests, greedy(120))
        assert llm.engine.stats().preemptions > 0
    assert_same(compare_with_alone(alone, outputs))


@pytest.mark.parametrize("eager", [True, False])
def test_eight_bit_keys_and_values_give_the_tokens_of_the_cpu(tiny: Path, eager: bool) -> None:
    """A number near the middle of two 8-bit floats may become either on the one and the other."""
    options: dict[str, Any] = {"kv_cache_dtype": "fp8", "max_num_batched_tokens": CONTEXT}
    with open_engine(tiny, enforce_eager=eager, max_num_seqs=8, **options) as llm:
        outputs = generate(llm, prompts(9), greedy(24))
        assert (facts(llm).get("replays", 0) > 0) != eager
    with open_engine(tiny, platform="cpu", enable_prefix_caching=False, **options) as alone:
        found = compare_with_alone(alone, outputs)
    assert_same(found, gap=0.05, logprob=0.05)


def sampled(tiny: Path, requests: list[list[int]], params: Any, **options: Any) -> list[list[int]]:
    with open_engine(tiny, max_num_seqs=16, **options) as llm:
        return [list(output.outputs[0].token_ids) for output in generate(llm, requests, params)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"top_k": 7},
        {"top_p": 0.8},
        {"min_p": 0.05},
        {"top_k": 20, "top_p": 0.9, "temperature": 0.7},
        {"presence_penalty": 0.8, "repetition_penalty": 1.1},
        {"logit_bias": {40: 4.0}, "min_tokens": 3},
    ],
)
def test_seeded_draws_are_those_of_the_cpu(tiny: Path, settings: dict[str, Any]) -> None:
    """A draw may fall on the other side of a border that two roundings place differently; what
    follows then differs too, so the common beginnings are compared."""
    requests = prompts(12, seed=5, longest=40)
    params = [
        SamplingParams(seed=seed, max_tokens=20, ignore_eos=True, **settings)
        for seed in range(len(requests))
    ]
    ours = sampled(tiny, requests, params)
    theirs = sampled(tiny, requests, params, platform="cpu")
    same = sum(own == other for own, other in zip(ours, theirs, strict=True))
    assert same >= len(requests) - 1


def test_logprobs_and_prompt_logprobs_are_those_of_the_cpu(tiny: Path, alone: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=6, logprobs=3, prompt_logprobs=2)
    requests = prompts(4, seed=8)
    with open_engine(tiny) as llm:
        ours = generate(llm, requests, params)
    for own, other in zip(ours, generate(alone, requests, params), strict=True):
        assert own.outputs[0].token_ids == other.outputs[0].token_ids
        pairs = zip(own.prompt_logprobs[1:], other.prompt_logprobs[1:], strict=True)
        for mine, reference in [*pairs]:
            for token in mine.keys() & reference.keys():
                assert mine[token].logprob == pytest.approx(reference[token].logprob, abs=1e-3)
        for mine, reference in zip(own.outputs[0].logprobs, other.outputs[0].logprobs, strict=True):
            for token in mine.keys() & reference.keys():
                assert mine[token].logprob == pytest.approx(reference[token].logprob, abs=1e-3)


def test_an_aborted_request_leaves_the_others_alone(tiny: Path, alone: LLM) -> None:
    requests = prompts(5, seed=2)
    with open_engine(tiny) as llm:
        engine = llm.engine
        ids = [str(number) for number in range(5)]
        for name, prompt in zip(ids, requests, strict=True):
            engine.add_request(name, prompt, greedy(30))
        finished: dict[str, RequestOutput] = {}
        for step in range(200):
            if step == 6:
                engine.abort_request(["2"])
            for output in engine.step():
                if output.finished:
                    finished[output.request_id] = output
            if not engine.has_unfinished_requests():
                break
        engine.core.scheduler.check()
    kept = [finished[name] for name in ids if name != "2"]
    assert_same(compare_with_alone(alone, kept))


def test_no_step_waits_for_the_device(tiny: Path, alone: LLM) -> None:
    """Torch refuses every call that would: what comes back is waited for by a mark alone."""
    import torch

    requests = prompts(12, seed=4)
    params = [
        SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, logprobs=0),
        SamplingParams(temperature=0.8, seed=1, top_k=9, top_p=0.9, max_tokens=20),
        SamplingParams(temperature=0.8, seed=2, presence_penalty=0.5, max_tokens=20),
        SamplingParams(
            temperature=0.0,
            max_tokens=20,
            min_tokens=5,
            stop_token_ids=[9],
            logit_bias={7: 2.0},
            allowed_token_ids=list(range(3, 90)),
        ),
    ] * 3
    with open_engine(tiny, max_num_batched_tokens=128) as llm:
        generate(llm, requests, params)  # memory that is pinned for the first time
        torch.cuda.set_sync_debug_mode("error")
        try:
            outputs = generate(llm, prompts(12, seed=6), params)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert facts(llm)["replays"] > 0
    pairs = zip(outputs, params, strict=True)
    greedy_ones = [output for output, given in pairs if given.greedy and given.ignore_eos]
    assert_same(compare_with_alone(alone, greedy_ones))


def test_nothing_is_compiled_while_requests_are_served(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton import knobs

    compiled: list[str] = []

    def note(*, fn: Any, **_: Any) -> None:
        compiled.append(fn.name)

    with open_engine(tiny, max_num_batched_tokens=256, max_num_seqs=24) as llm:
        monkeypatch.setattr(knobs.runtime, "jit_post_compile_hook", note)
        several = prompts(40, seed=11)
        shared = [several[0][:1] * 64 + prompt[:100] for prompt in several]
        drawn = SamplingParams(temperature=0.8, top_k=9, top_p=0.9, max_tokens=20)
        for requests in (several[:1], several, shared, shared):
            generate(llm, requests, greedy(20))
            generate(llm, [[*prompt[1:], 7] for prompt in requests], drawn)
        assert facts(llm)["replays"] > 0
    assert not compiled


def test_a_quantised_file_runs_on_the_gpu(smollm2_path: Path) -> None:
    """Q4_1 and Q8_0 as they are stored; float32 products of the same numbers on both."""
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 4}
    requests = [[1, 504, 340, 260, 2240], [6330, 314, 260, 3575, 282, 4649]]
    with (
        LLM(str(smollm2_path), platform="cpu", enable_prefix_caching=False, **options) as cpu,
        LLM(str(smollm2_path), platform="cuda", **options) as gpu,
    ):
        assert_same(compare_with_alone(cpu, generate(gpu, requests, greedy(24))))
