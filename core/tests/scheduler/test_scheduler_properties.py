"""Any schedule gives every request the tokens it gets alone, and every block comes back.

The toy executor checks on every step that all tokens a row attends to are read back from its block
table; the audit checks every count after every step.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pegboard.api.params import SamplingParams
from pegboard.api.views import EngineRequest
from pegboard.config.engine import POLICIES
from pegboard.kv.groups import blocks_for, form_groups
from pegboard.testing.toy import ToyCounts, ToyExecutor, toy_generate
from pegboard.testing.toy_engine import ToyEngine, toy_request
from pegboard.testing.toy_kinds import TOY_KINDS

LONGEST = 160
"""Most tokens of one request in these tests."""


class Setting(msgspec.Struct, frozen=True):
    """One way to run a workload."""

    seed: int
    budget: int
    block_size: int = 16
    caching: bool = True
    share: float = 1.0
    """Blocks, as a share of what all requests together would hold."""
    chunked: bool = True
    seqs: int = 6
    kinds: str = "full"
    depth: int = 1
    shuffled: bool = False
    policy: str = "fcfs"
    partial: tuple[int, int, int] = (1, 1, 0)
    """Prompts at once, long ones among them, threshold."""
    reserving: bool = True


def workload(rng: random.Random, encoder_tokens: int = 0) -> list[EngineRequest]:
    """Requests with common beginnings, families, end ids and all lengths."""
    stems = [[rng.randrange(90) for _ in range(LONGEST)] for _ in range(3)]
    requests: list[EngineRequest] = []
    for number in range(rng.randint(4, 9)):
        stem = rng.choice(stems)[: rng.randrange(0, 90)]
        prompt = stem + [rng.randrange(90) for _ in range(rng.randrange(1, 30))]
        n = rng.choice([1, 1, 1, 2, 3])
        least = rng.choice([0, 3])
        params = SamplingParams(temperature=1.0, n=n, min_tokens=least, max_tokens=40)
        common = {
            "params": params,
            "seed": rng.randrange(2**40),
            "end_ids": rng.sample(range(97), rng.choice([0, 6])),
            "cache_salt": rng.choice([None, None, None, "tenant"]),
            "priority": rng.randrange(-2, 3),
            "encoder_tokens": encoder_tokens and rng.randrange(encoder_tokens),
        }
        for child in range(n):
            requests.append(
                toy_request(
                    f"{number}.{child}",
                    prompt,
                    rng.randrange(max(least, 1), 40),
                    child=child,
                    parent=f"{number}.0" if child else None,
                    **common,
                )
            )
    return requests


def make_engine(setting: Setting, requests: list[EngineRequest]) -> ToyEngine:
    executor = ToyExecutor(specs=TOY_KINDS[setting.kinds])
    groups = form_groups(executor.kv_slots(), setting.block_size)
    wanted = [
        blocks_for(groups, len(r.prompt_ids) + r.max_tokens, setting.budget) for r in requests
    ]
    blocks = max(int(sum(wanted) * setting.share), *wanted) + 1
    return ToyEngine(
        blocks,
        depth=setting.depth,
        executor=executor,
        block_size=setting.block_size,
        max_num_batched_tokens=setting.budget,
        max_num_seqs=setting.seqs,
        enable_prefix_caching=setting.caching,
        enable_chunked_prefill=setting.chunked,
        scheduler_reserve_full_isl=setting.reserving,
        **policy_options(setting),
    )


def policy_options(setting: Setting) -> dict[str, Any]:
    """Options that not every other one goes together with are left out where they do not."""
    options: dict[str, Any] = {"scheduling_policy": setting.policy}
    if setting.policy == "lpm" and not setting.caching:
        options = {}
    if setting.chunked:
        most, longs, threshold = setting.partial
        options["max_num_partial_prefills"] = most
        options["max_long_partial_prefills"] = min(longs, most)
        options["long_prefill_token_threshold"] = threshold
    return options


def run_setting(setting: Setting) -> ToyEngine:
    """Run a workload, some requests arriving late, and compare with each alone."""
    rng = random.Random(setting.seed)
    requests = workload(rng, 20 if "cross" in setting.kinds else 0)
    if setting.shuffled:
        rng.shuffle(requests)
    if not setting.chunked:
        requests = [r for r in requests if len(r.prompt_ids) <= setting.budget]
    engine = make_engine(setting, requests or workload(rng))
    for request in requests:
        engine.add(request)
        if rng.random() < 0.5:
            engine.step()
    engine.run()
    for request in requests:
        told = engine.told[request.request_id]
        assert told.token_ids == toy_generate(request), f"{request.request_id} differs"
        assert told.finish_reason in ("stop", "length")
    engine.scheduler.check()
    assert engine.scheduler.stats().used_blocks == 0
    return engine


settings_strategy = st.builds(
    Setting,
    seed=st.integers(0, 2**32),
    budget=st.integers(16, 8192) | st.integers(16, 80),
    block_size=st.sampled_from([8, 16, 32]),
    caching=st.booleans(),
    share=st.sampled_from([1.0, 0.25]),
    chunked=st.booleans(),
    seqs=st.integers(1, 12),
    kinds=st.sampled_from(sorted(TOY_KINDS)),
    depth=st.sampled_from([1, 1, 2, 3]),
    shuffled=st.booleans(),
    policy=st.sampled_from(POLICIES),
    partial=st.tuples(st.integers(1, 4), st.integers(1, 4), st.sampled_from([0, 0, 5, 40])),
    reserving=st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(setting=settings_strategy)
@example(Setting(seed=1, budget=16, block_size=8, share=0.25))
@example(Setting(seed=2, budget=8192, block_size=32, caching=False))
@example(Setting(seed=3, budget=16, block_size=8, share=0.25, seqs=12, depth=2))
def test_any_schedule_gives_the_tokens_of_each_request_alone(setting: Setting) -> None:
    # A budget below the number of requests is refused by the configuration.
    run_setting(msgspec.structs.replace(setting, seqs=min(setting.seqs, setting.budget)))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_fixed_sweep_exercises_everything_that_it_claims(depth: int) -> None:
    counts, preemptions = Counter[str](), 0
    for seed in range(10):
        for number, (block_size, budget) in enumerate(((8, 16), (16, 48), (32, 1024))):
            setting = Setting(
                seed,
                budget,
                block_size,
                caching=seed % 2 == 0,
                share=0.25,
                seqs=12,
                depth=depth,
                policy=POLICIES[(seed // 2 + number) % 3],
            )
            engine = run_setting(setting)
            counts.update(msgspec.structs.asdict(engine.executor.counts))
            preemptions += engine.scheduler.stats().preemptions
    assert preemptions > 20, "hardly any preemption"
    for name in set(ToyCounts.__struct_fields__) - {"resyncs", "state_copies"}:
        assert counts[name] > 20, f"{name}: {counts[name]} in the whole sweep"


# Random operations


class Storm:
    """Adds, aborts, finishes, failures, resyncs, resets at random, also within a step."""

    def __init__(self, seed: int, depth: int, caching: bool, **options: Any) -> None:
        self.rng = random.Random(seed)
        self.engine = ToyEngine(
            blocks=26,
            block_size=8,
            depth=depth,
            max_num_batched_tokens=24,
            max_num_seqs=6,
            enable_prefix_caching=caching,
            executor=ToyExecutor(poison=96),
            watermark=0.05,
            **options,
        )
        self.live: dict[str, EngineRequest] = {}
        self.done = Counter[str]()
        self._number = 0
        self._flying = 0
        self._depth = depth
        self._events = (0, 0, 0)
        self._was_reset = False

    def run(self, operations: int) -> None:
        actions = ["add"] * 4 + ["step"] * 12 + ["abort", "finish", "resync", "reset"]
        for _ in range(operations):
            getattr(self, self.rng.choice(actions))()
            self.engine.scheduler.check()
            self._watch_counters()
        while self.engine.scheduler.has_work():
            self.step()
            self.engine.scheduler.check()
        stats = self.engine.scheduler.stats()
        assert (stats.running, stats.waiting, stats.used_blocks) == (0, 0, 0)
        assert self.engine.scheduler.reset_prefix_cache(), "a block is lost"
        self.done["preemptions"] = stats.preemptions
        self.done["hit tokens"] = stats.cache.hit_tokens
        self.done.update(msgspec.structs.asdict(self.engine.executor.counts))

    def add(self) -> None:
        if len(self.live) > 14:
            return
        rng, number = self.rng, self._number
        self._number += 1
        prompt = [(number % 3 + i) % 90 for i in range(rng.randrange(1, 70))]
        if rng.random() < 0.05:
            prompt.append(96)  # the runner fails on this one
        n = rng.choice([1, 1, 2, 4])
        for child in range(n):
            request = toy_request(
                f"{number}.{child}",
                prompt,
                rng.randrange(1, 40),
                seed=number,
                child=child,
                params=SamplingParams(temperature=1.0),
                parent=f"{number}.0" if child else None,
                priority=number % 7 - 3,
            )
            self.engine.add(request)
            self.live[request.request_id] = request
            self.done["added"] += 1

    def step(self) -> None:
        """Launch or land, as the depth allows."""
        if self._flying < self._depth and self.rng.random() < 0.7:
            self._flying += self.engine.launch()
        elif self._flying:
            self._flying -= 1
            for output in self.engine.land():
                if output.finish_reason is not None:
                    self._ended(output.request_id, output.finish_reason)

    def _ended(self, name: str, reason: str) -> None:
        request = self.live.pop(name)
        self.done[reason] += 1
        told = self.engine.told[name].token_ids
        whole = toy_generate(request)
        if reason == "length":
            assert told == whole, f"{name} differs"
        else:
            assert told == whole[: len(told)], f"{name} differs"

    def _watch_counters(self) -> None:
        """None is ever negative, and those that count events never fall."""
        stats = self.engine.scheduler.stats()
        levels = (stats.running, stats.waiting, stats.used_blocks, stats.total_blocks)
        events = (stats.preemptions, stats.cache.queried_tokens, stats.cache.hit_tokens)
        assert min(*levels, *events) >= 0, stats
        if not self._was_reset:
            assert all(new >= old for old, new in zip(self._events, events, strict=True)), stats
        assert stats.running + stats.waiting == len(self.live), stats
        assert stats.cache.hit_tokens <= stats.cache.queried_tokens
        self._events, self._was_reset = events, False

    def _pick(self) -> list[str]:
        if not self.live:
            return []
        return self.rng.sample(sorted(self.live), min(len(self.live), self.rng.choice([1, 1, 3])))

    def abort(self) -> None:
        names = self._pick()
        self.engine.abort(*names)
        for name in names:
            assert self.engine.told[name].finish_reason == "abort"
            self._ended(name, "abort")

    def finish(self) -> None:
        names = self._pick()
        self.engine.scheduler.finish(names, "stop")
        for name in names:
            self._ended(name, "stop")

    def resync(self) -> None:
        if self.rng.random() < 0.3:
            self.engine.scheduler.resync()

    def reset(self) -> None:
        self._was_reset = self.engine.scheduler.reset_prefix_cache()
        self.done["resets"] += self._was_reset


def demand(storm: Storm, least: int) -> None:
    """Fail if the storm did not do what it is there for."""
    names = [
        "added",
        "length",
        "abort",
        "stop",
        "error",
        "preemptions",
        "prefill_chunks",
        "resumed",
        "copies",
        "reused_slots",
        "resyncs",
        "hits",
    ]
    for name in names:
        assert storm.done[name] >= least, f"{name}: {storm.done[name]} times only"


@pytest.mark.parametrize(("depth", "caching"), [(1, True), (1, False), (2, True), (3, False)])
def test_random_operations_leave_every_block_free_or_cached(depth: int, caching: bool) -> None:
    storm = Storm(seed=11, depth=depth, caching=caching)
    storm.run(1500)
    demand(storm, 5)


SHARING = {"max_num_partial_prefills": 3, "max_long_partial_prefills": 2}


@pytest.mark.parametrize(
    ("policy", "depth", "options"),
    [
        ("priority", 1, {}),
        ("priority", 2, {"long_prefill_token_threshold": 5, **SHARING}),
        ("lpm", 1, {"long_prefill_token_threshold": 9}),
        ("lpm", 2, {"scheduler_reserve_full_isl": False}),
    ],
)
def test_random_operations_under_every_policy(
    policy: str, depth: int, options: dict[str, Any]
) -> None:
    storm = Storm(seed=5, depth=depth, caching=True, scheduling_policy=policy, **options)
    storm.run(1000)
    demand(storm, 3)


@pytest.mark.accept
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("depth", "seed"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_100000_random_operations_leave_every_block_free_or_cached(depth: int, seed: int) -> None:
    storm = Storm(seed=seed, depth=depth, caching=seed % 2 == 0)
    storm.run(100_000)
    demand(storm, 200)


@pytest.mark.accept
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("depth", [1, 2])
def test_10000_random_operations_under_every_policy(policy: str, depth: int) -> None:
    storm = Storm(seed=3, depth=depth, caching=True, scheduling_policy=policy, **SHARING)
    storm.run(10_000)
    demand(storm, 20)
