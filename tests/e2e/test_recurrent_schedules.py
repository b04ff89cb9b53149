"""Models with recurrent layers: any schedule gives the tokens that each request gets alone, and no
state is read that nobody wrote.

Before each step, every block that a request is given anew is filled with not-a-number in all of its
bytes, whichever kind of layer had it before: one state or key too many shows in the tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from pegboard import LLM, RequestOutput, SamplingParams
from pegboard.api.step import StepPlan
from pegboard.testing.checkpoints import write_hybrid_model
from pegboard_testkit.alone import compare_with_alone, scores
from pegboard_testkit.near_tie import assert_same

pytestmark = pytest.mark.usefixtures("one_thread")

CONTEXT = 256
MODES = ("none", "align", "all")
MODELS: dict[str, dict[str, Any]] = {
    "recurrent": {"layer_kinds": ["recurrent", "recurrent"]},
    "hybrid": {"layer_kinds": ["recurrent", "full", "recurrent"]},
    # A state of five base blocks of attention, which fills its page only in part.
    "hybrid with large states": {
        "layer_kinds": ["full", "recurrent"],
        "state_heads": 3,
        "key_size": 12,
        "value_size": 20,
        "conv_width": 3,
    },
}

SCARCE = {
    "recurrent": {"none": 4, "align": 4, "all": 5},
    "hybrid": {"none": 8, "align": 10, "all": 14},
    "hybrid with large states": {"none": 5, "align": 6, "all": 7},
}
"""Blocks in which a request of 64 tokens fits, but not several."""


@attrs.define
class Counts:
    """What a run exercised."""

    chunks: int = 0
    """Rows that end inside a prompt."""
    mates: int = 0
    """Steps of several rows."""
    poisoned: int = 0
    """Blocks filled with not-a-number."""
    copies: int = 0
    """Copies of states."""
    resyncs: int = 0
    borders: int = 0
    """Borders inside a step."""


class Watch:
    """Poisons new blocks before each step of an engine, and counts what the steps do."""

    def __init__(self, llm: LLM) -> None:
        core = llm.engine.core
        self.counts = Counts()
        self.groups = llm.cache.groups
        self._execute = core.executor._runner.execute
        storages = {
            tensors.data.data_ptr(): tensors.data.untyped_storage()
            for tensors in core.executor._runner.storage.values()
        }
        pages = (llm.cache.num_blocks, llm.cache.page_bytes)
        self._lanes = [
            torch.empty(0, dtype=torch.uint8).set_(storage, 0, pages)
            for storage in storages.values()
        ]
        assert len(self._lanes) == llm.cache.lanes
        for lane in self._lanes:
            lane.fill_(255)
        # On the thread of the steps: while one runs, the blocks of the next may still be read.
        core.executor._thread._execute = self.execute

    def execute(self, plan: StepPlan) -> Any:
        blocks = sorted({i for row in plan.new_blocks for ids in row for i in ids} - {0})
        for lane in self._lanes:
            lane[blocks] = 255
        counts = self.counts
        counts.poisoned += len(blocks)
        counts.chunks += sum(not samples for samples in plan.samples)
        counts.mates += plan.rows > 1
        counts.resyncs += plan.resync
        states = {group.index: group for group in self.groups if group.spec.kind == "recurrent"}
        counts.copies += sum(copy.group in states for copy in plan.copies)
        size = next(iter(states.values())).block_size
        for start, count in zip(plan.starts, plan.counts, strict=True):
            counts.borders += (start + count - 1) // size > start // size
        return self._execute(plan)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("hybrid")
    return {
        name: write_hybrid_model(root / str(number), seed=number, **shape)
        for number, (name, shape) in enumerate(MODELS.items())
    }


@contextmanager
def opened(path: Path, **options: Any) -> Iterator[tuple[LLM, Counts]]:
    common = {"dtype": "float32", "max_model_len": CONTEXT, "max_num_seqs": 8, "block_size": 8}
    common["num_gpu_blocks_override"] = 300
    with LLM(str(path), **{**common, **options}) as llm:
        yield llm, Watch(llm).counts
        llm.engine.core.scheduler.check()


@pytest.fixture(scope="module")
def alone(folders: dict[str, Path], one_thread: None) -> Iterator[dict[str, LLM]]:
    """The oracle by model: one request at a time, whole prompts, nothing cached."""
    options = {"max_model_len": CONTEXT, "block_size": 8, "num_gpu_blocks_override": 300}
    oracles = {
        name: LLM(str(path), dtype="float32", enable_prefix_caching=False, **options)
        for name, path in folders.items()
    }
    yield oracles
    for llm in oracles.values():
        llm.close()


def check_same(alone: LLM, outputs: list[RequestOutput]) -> None:
    assert_same(compare_with_alone(alone, outputs))


def greedy(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, logprobs=0)


def prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    draws = np.random.default_rng(seed)
    return [draws.integers(3, 259, size=length).tolist() for length in lengths]


QUICK = (
    ("recurrent", "align"),
    ("hybrid", "none"),
    ("hybrid", "all"),
    ("hybrid with large states", "align"),
)
every_model = pytest.mark.parametrize("model", list(MODELS))
every_case = pytest.mark.parametrize(
    ("model", "mode"),
    [
        pytest.param(model, mode, marks=() if (model, mode) in QUICK else pytest.mark.accept)
        for model in MODELS
        for mode in MODES
    ],
)


@every_case
def test_chunks_and_batch_mates_change_nothing(
    folders: dict[str, Path], alone: dict[str, LLM], model: str, mode: str
) -> None:
    options = {"max_num_batched_tokens": 21, "mamba_cache_mode": mode}
    with opened(folders[model], **options) as (llm, counts):
        outputs = llm.generate(prompts(1, 2, 50, 90, 33, 8), greedy(10), use_tqdm=False)
    assert min(counts.chunks, counts.mates, counts.poisoned) > 2, counts
    check_same(alone[model], outputs)


@every_case
def test_preempted_requests_give_the_same_tokens(
    folders: dict[str, Path], alone: dict[str, LLM], model: str, mode: str
) -> None:
    options = {"max_num_batched_tokens": 16, "max_model_len": 64, "watermark": 0.0}
    options["num_gpu_blocks_override"] = SCARCE[model][mode]
    with opened(folders[model], mamba_cache_mode=mode, **options) as (llm, _):
        outputs = llm.generate(prompts(8, 8, 7, 8, 24, 15), greedy(30), use_tqdm=False)
        preemptions = llm.engine.stats().preemptions
    if (model, mode) == ("recurrent", "none"):
        assert preemptions == 0, "a state per request is all that it will ever need"
    else:
        assert preemptions > 0, "nothing was preempted"
    check_same(alone[model], outputs)


@every_case
def test_hits_on_states_give_what_computing_gives(
    folders: dict[str, Path], alone: dict[str, LLM], model: str, mode: str
) -> None:
    (shared,) = prompts(100)
    asked = [[*shared, *end] for end in prompts(1, 30, 7, seed=1)]
    options = {"mamba_cache_mode": mode, "max_num_batched_tokens": 128}
    with opened(folders[model], **options) as (llm, counts):
        first = llm.generate(shared, greedy(8), use_tqdm=False)
        outputs = llm.generate(asked, greedy(8), use_tqdm=False)
        again = llm.generate(asked, greedy(8), use_tqdm=False)
        stats = llm.engine.stats().cache
        border = max(group.block_size for group in llm.cache.groups)
    hits = [output.num_cached_tokens for output in outputs + again]
    if mode == "none":
        assert (stats.queried_tokens, stats.hit_tokens, max(hits)) == (0, 0, 0)
    else:
        assert min(hits) >= 100 // border * border > 0, hits
    if mode == "all":
        assert counts.borders > 0
    check_same(alone[model], first + outputs + again)


@every_model
def test_only_mode_all_keeps_states_inside_a_step(folders: dict[str, Path], model: str) -> None:
    """One step over a whole prompt leaves a state at its last border only, or at all of them."""
    (ids,) = prompts(100)
    found = {}
    for mode in ("align", "all"):
        options = {"mamba_cache_mode": mode, "max_num_batched_tokens": 128}
        with opened(folders[model], **options) as (llm, _):
            llm.generate(ids, greedy(1), use_tqdm=False)
            other = [*ids[:70], *prompts(20, seed=3)[0]]
            (output,) = llm.generate(other, greedy(1), use_tqdm=False)
            border = max(group.block_size for group in llm.cache.groups)
        found[mode] = output.num_cached_tokens
    assert found == {"align": 0, "all": 70 // border * border}


@every_case
def test_several_sequences_start_from_a_copy_of_their_prompts_state(
    folders: dict[str, Path], alone: dict[str, LLM], model: str, mode: str
) -> None:
    params = SamplingParams(n=3, seed=5, max_tokens=8, ignore_eos=True, logprobs=0)
    options = {"mamba_cache_mode": mode, "max_num_batched_tokens": 32}
    with opened(folders[model], **options) as (llm, counts):
        border = min(*(group.block_size for group in llm.cache.groups), 64)
        inside, at_border = prompts(2 * border + 4, 2 * border + 1)
        outputs = llm.generate([inside, at_border], params, use_tqdm=False)
    kept_whole = 0 if mode == "none" else 1  # a state at a border is read where it is
    states = sum(kind == "recurrent" for kind in MODELS[model]["layer_kinds"])
    groups = states if model == "hybrid" else 1
    assert counts.copies == (2 - kept_whole) * 3 * groups, (
        "to a snapshot, and from it to each child"
    )
    for output in outputs:
        made = [list(item.token_ids) for item in output.outputs]
        assert len({tuple(tokens) for tokens in made}) == 3
        for item in output.outputs:
            assert item.logprobs is not None
            own = [e[t].logprob for e, t in zip(item.logprobs, item.token_ids, strict=True)]
            chosen, _ = scores(alone[model], output.prompt_token_ids, list(item.token_ids))
            assert own == pytest.approx(chosen, abs=1e-3)


@every_case
def test_aborts_and_resyncs_leave_the_others_as_they_are(
    folders: dict[str, Path], alone: dict[str, LLM], model: str, mode: str
) -> None:
    options = {"mamba_cache_mode": mode, "max_num_batched_tokens": 24}
    asked = prompts(40, 61, 25, 70)
    with opened(folders[model], **options) as (llm, counts):
        engine, outputs = llm.engine, {}
        for number, ids in enumerate(asked):
            engine.add_request(str(number), {"prompt_token_ids": ids}, greedy(16))
        for step in range(200):
            if step == 5:
                engine.abort_request(["1"])
            if step in (4, 11):
                engine.core.scheduler.resync()
            if not engine.has_unfinished_requests():
                break
            outputs |= {o.request_id: o for o in engine.step() if o.finished}
        stats = engine.stats()
    assert counts.resyncs == 2 and counts.mates > 2
    assert stats.used_blocks == 0
    kept = [output for name, output in outputs.items() if name != "1"]
    assert len(kept) == 3
    check_same(alone[model], kept)


@every_model
def test_a_state_costs_the_same_however_long_a_request_is(
    folders: dict[str, Path], model: str
) -> None:
    used = []
    for length in (60, 220):
        with opened(folders[model], max_num_batched_tokens=32) as (llm, _):
            llm.engine.add_request("a", {"prompt_token_ids": prompts(length)[0]}, greedy(8))
            most = 0
            while llm.engine.has_unfinished_requests():
                llm.engine.step()
                most = max(most, llm.engine.stats().used_blocks)
            grown = sum(
                group.spec.blocks_for(length + 7, group.block_size)
                for group in llm.cache.groups
                if group.spec.grows
            )
        used.append(most - grown)
    assert used[0] == used[1]
