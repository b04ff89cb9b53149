"""The scheduler with KV groups of every kind: the same tokens, no more blocks than needed.

`ToyExecutor` checks in every step that each group still has all that its kind attends to.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from pegboard.api.kv import RecurrentSpec, StateTensor
from pegboard.api.params import SamplingParams
from pegboard.api.views import EngineRequest
from pegboard.errors import RequestError, ResourceError
from pegboard.kv.groups import blocks_for, form_groups
from pegboard.testing.toy import ToyExecutor, toy_generate
from pegboard.testing.toy_engine import ToyEngine, toy_request
from pegboard.testing.toy_kinds import TOY_KINDS

HITLESS = {
    name for name in TOY_KINDS if any(word in name for word in ("cross", "encoder", "without"))
} | {"all"}


def engine(kinds: str, blocks: int = 80, **options: object) -> ToyEngine:
    executor = ToyExecutor(specs=TOY_KINDS[kinds])
    options.setdefault("block_size", 8)
    return ToyEngine(blocks, executor=executor, **options)  # type: ignore[arg-type]


def prompt(tokens: int, first: int = 0) -> list[int]:
    return [(first + i) % 97 for i in range(tokens)]


def sampled(name: str, ids: list[int], count: int, child: int = 0, **options: Any) -> EngineRequest:
    params = SamplingParams(temperature=1.0, n=4)
    return toy_request(name, ids, count, params=params, seed=3, child=child, **options)


def most_used(toy: ToyEngine) -> int:
    """Run to the end; the most blocks in use after any step."""
    most = 0
    while toy.scheduler.has_work():
        toy.step()
        most = max(most, toy.scheduler.stats().used_blocks)
    return most


# Blocks in use


@pytest.mark.parametrize("kinds", ["sliding", "chunked", "state"])
@pytest.mark.parametrize("depth", [1, 2])
def test_use_is_flat_beyond_the_window(kinds: str, depth: int) -> None:
    used = []
    for length in (60, 200, 400):
        toy = engine(kinds, depth=depth, max_num_batched_tokens=16)
        toy.add(toy_request("a", prompt(length), length // 2))
        used.append(most_used(toy))
    assert used[1] == used[2], "twice the length takes no more"
    assert used[2] <= 3 + 2 * depth


def test_use_grows_only_in_the_full_groups_of_a_mix() -> None:
    toy = engine("sliding and full", blocks=300, max_num_batched_tokens=16)
    toy.add(toy_request("a", prompt(200), 40))
    per_group = blocks_for(form_groups(toy.executor.kv_slots(), 8)[:1], 10**6, 16)
    assert per_group == 6
    assert most_used(toy) <= 30 + 2 * per_group


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("kinds", sorted(TOY_KINDS))
def test_a_request_alone_runs_in_exactly_the_blocks_that_are_counted(
    kinds: str, depth: int
) -> None:
    groups = form_groups(ToyExecutor(specs=TOY_KINDS[kinds]).kv_slots(), 8)
    request = toy_request("a", prompt(150), 50)
    toy = engine(kinds, blocks_for(groups, 199, 20) + 1, depth=depth, max_num_batched_tokens=20)
    toy.add(request)
    assert toy.run(2000)["a"].token_ids == toy_generate(request)


def test_a_prompt_longer_than_the_pool_is_served_by_windows_alone() -> None:
    toy = engine("sliding", blocks=8, max_num_batched_tokens=16)
    request = toy_request("a", prompt(300), 20)
    toy.add(request)
    assert toy.run()["a"].token_ids == toy_generate(request)
    with pytest.raises(ResourceError, match="the KV cache holds 144"):
        engine("sliding and full", blocks=31, max_num_batched_tokens=16).add(
            toy_request("a", prompt(300), 20)
        )


def test_requests_are_admitted_by_what_they_hold_not_by_their_length() -> None:
    toy = engine("sliding", blocks=25, watermark=0.0, max_num_batched_tokens=64)
    for number in range(3):
        toy.add(toy_request(str(number), prompt(120, 9 * number), 30))
    most = 0
    while toy.scheduler.has_work():
        toy.step()
        most = max(most, toy.scheduler.stats().running)
    assert most == 3, "three prompts of 15 blocks each share a pool of 24"


# Hits


@pytest.mark.parametrize("kinds", sorted(set(TOY_KINDS) - HITLESS))
def test_a_long_prompt_hits_far_beyond_the_window(kinds: str) -> None:
    toy = engine(kinds, blocks=500)
    first = toy_request("a", prompt(200), 4)
    toy.add(first)
    toy.run()
    again = toy_request("b", [*prompt(200), 5, 6], 4)
    toy.add(again)
    told = toy.run()["b"]
    assert told.token_ids == toy_generate(again)
    assert told.last is not None
    assert told.last.cached_tokens >= 192, "whole blocks of the largest group"


@pytest.mark.parametrize("kinds", sorted(HITLESS))
def test_a_model_without_hits_counts_no_queries(kinds: str) -> None:
    toy = engine(kinds, blocks=500)
    for name in "ab":
        toy.add(toy_request(name, prompt(100), 4))
        toy.run()
    stats = toy.scheduler.stats().cache
    assert (stats.queried_tokens, stats.hit_tokens) == (0, 0)


@pytest.mark.parametrize(("blocks", "cached"), [(9, 32), (8, 0)])
def test_a_hit_that_leaves_no_room_for_its_copy_is_given_up(blocks: int, cached: int) -> None:
    toy = engine("full of two sizes", blocks, max_num_batched_tokens=64)
    toy.add(toy_request("a", prompt(40), 1))
    toy.run()
    # 32 tokens are cached. With 7 blocks to take, the second request, which needs them all, lacks
    # one while the source of its copy is held.
    request = toy_request("b", [*prompt(32), *prompt(8, 50)], 1)
    toy.add(request)
    told = toy.run(50)["b"]
    assert told.token_ids == toy_generate(request)
    assert told.last is not None and told.last.cached_tokens == cached


# Forks and preemption


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("length", [1, 8, 9, 16, 17, 33, 40])
@pytest.mark.parametrize("kinds", sorted(TOY_KINDS))
def test_children_start_from_their_parents_prompt(kinds: str, length: int, caching: bool) -> None:
    toy = engine(kinds, blocks=400, enable_prefix_caching=caching)
    requests = [
        sampled(str(child), prompt(length), 6, child, parent="0" if child else None)
        for child in range(4)
    ]
    for request in requests:
        toy.add(request)
    toy.run()
    for request in requests:
        assert toy.told[request.request_id].token_ids == toy_generate(request)
    # The prompt once, its last token for each child, and the tokens sampled but the last.
    if kinds != "chunked" or not caching:  # else whole chunks are skipped
        assert toy.executor.counts.tokens == length + 3 + 4 * 5


def test_a_snapshot_is_given_up_when_the_children_have_it() -> None:
    toy = engine("state")
    for child in range(3):
        parent = "0" if child else None
        toy.add(sampled(str(child), prompt(30), 1 if child else 40, child, parent=parent))
    for _ in range(20):
        toy.step()
    assert toy.executor.counts.state_copies == 1 + 2, "to the snapshot, and from it"
    assert toy.scheduler.stats().running == 1
    assert toy.scheduler.stats().used_blocks == 1


def test_a_child_that_comes_late_computes_the_prompt_if_the_state_has_moved_on() -> None:
    toy = engine("state without copies")
    toy.add(sampled("0", prompt(20), 12))
    for _ in range(4):
        toy.step()
    late = sampled("1", prompt(20), 4, 1, parent="0")
    toy.add(late)
    assert toy.run()["1"].token_ids == toy_generate(late)


def test_encoder_tokens_that_the_model_cannot_read_are_refused() -> None:
    with pytest.raises(RequestError, match=r"encoder_tokens=21 is not allowed.*at most 20"):
        engine("cross and full").add(toy_request("a", prompt(5), encoder_tokens=21))
    with pytest.raises(RequestError, match="encoder_tokens=1 is not allowed"):
        engine("full").add(toy_request("a", prompt(5), encoder_tokens=1))


# Everything at once


class Mix:
    """Random requests, aborts and steps on one kind of model; counts what came up."""

    def __init__(self, kinds: str, seed: int, depth: int) -> None:
        self.rng = random.Random(seed)
        self.encoder = 20 if "cross" in kinds or kinds == "all" else 0
        groups = form_groups(ToyExecutor(specs=TOY_KINDS[kinds]).kv_slots(), 8)
        blocks = int(1.6 * blocks_for(groups, 130, 24)) + 1
        self.toy = engine(
            kinds, blocks, depth=depth, max_num_batched_tokens=24, max_num_seqs=6, watermark=0.02
        )
        self.requests: dict[str, EngineRequest] = {}

    def add(self) -> None:
        rng, number = self.rng, len(self.requests)
        if self.toy.scheduler.stats().waiting > 8:
            return
        ids = [*prompt(rng.randrange(1, 70), number % 2), *prompt(rng.randrange(20), number)]
        ids, tokens = ids or [1], rng.randrange(1, 40)
        encoder = rng.randrange(self.encoder) if self.encoder else 0
        for child in range(rng.choice([1, 1, 3])):
            name = f"{number}.{child}"
            parent = f"{number}.0" if child else None
            request = sampled(name, ids, tokens, child, parent=parent, encoder_tokens=encoder)
            self.toy.add(request)
            self.requests[name] = request

    def abort(self) -> None:
        live = [name for name, told in self.toy.told.items() if told.finish_reason is None]
        if live:
            self.toy.abort(self.rng.choice(live))

    def run(self, operations: int) -> Counter[str]:
        for _ in range(operations):
            self.rng.choice([self.add] * 3 + [self.toy.step] * 12 + [self.abort])()
        self.toy.run()
        for name, told in self.toy.told.items():
            expected = toy_generate(self.requests[name])
            if told.finish_reason == "abort":
                expected = expected[: len(told.token_ids)]
            assert told.token_ids == expected, name
        assert self.toy.scheduler.stats().used_blocks == 0
        assert self.toy.scheduler.reset_prefix_cache(), "a block is lost"
        counts = Counter(msgspec.structs.asdict(self.toy.executor.counts))
        stats = self.toy.scheduler.stats()
        return counts + Counter(preemptions=stats.preemptions)


@pytest.mark.parametrize("kinds", sorted(TOY_KINDS))
def test_random_operations_give_the_tokens_of_each_request_alone(kinds: str) -> None:
    counts = Mix(kinds, seed=1, depth=1).run(250) + Mix(kinds, seed=2, depth=2).run(250)
    for name in ("preemptions", "resumed", "hits", "copies", "prefill_chunks", "shared_steps"):
        assert counts[name] > 3, f"{name}: {counts[name]} times only"
    if any(isinstance(spec, RecurrentSpec) for spec in TOY_KINDS[kinds]):
        assert counts["state_copies"] > 3


@pytest.mark.accept
@pytest.mark.parametrize("kinds", sorted(TOY_KINDS))
def test_many_random_operations_give_the_tokens_of_each_request_alone(kinds: str) -> None:
    for seed in range(3, 7):
        Mix(kinds, seed, depth=1 + seed % 3).run(1500)


def test_states_are_copied_only_where_a_fork_needs_them() -> None:
    spec = RecurrentSpec((StateTensor("s", (2,), "float32"),))
    toy = ToyEngine(40, executor=ToyExecutor(specs=[spec]), block_size=8)
    toy.add(toy_request("a", prompt(50), 60))
    toy.run()
    assert toy.executor.counts.copies == 0, "borders are kept by writing the next entry"
