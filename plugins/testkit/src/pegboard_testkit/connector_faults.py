"""Tests of the connector kit in which something goes wrong: aborts, few blocks, loads and reports
that fail, and all of it at random."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from pegboard.api.connector import Load, Piece
from pegboard.api.views import EngineRequest
from pegboard.testing.toy_connected import Clock
from pegboard.testing.toy_engine import ToyEngine, toy_request
from pegboard.testing.toy_paged import Faults, PagedToyExecutor
from pegboard_testkit.connector_base import ConnectorBase
from pegboard_testkit.connector_case import (
    Storm,
    check_answers,
    distortion,
    loaded_entries,
    requests,
    run,
    spoiling,
)

__all__ = ["ConnectorFaults"]

POLICIES = ("recompute", "fail")


class ConnectorFaults(ConnectorBase):
    """Part of `ConnectorKit`."""

    @pytest.mark.parametrize("depth", [1, 2])
    def test_requests_may_be_aborted_at_any_time(
        self, make: Callable[..., ToyEngine], depth: int
    ) -> None:
        """Also while a load goes on: reports are held back, so that it does for some steps."""
        run(make(), requests())
        during = waits = 0
        for steps in range(12):
            late = Faults(distort=distortion("late" if steps % 3 else "none"))
            engine = make(depth=depth, faults=late)
            wanted = requests()
            for request in wanted:
                engine.add(request)
            for _ in range(steps):
                engine.step()
            gone = {"r1", "r2"} if steps % 2 else {"r0", "r1"}  # others may wait for the first
            during += len(engine.loading() & gone)
            waits += self._half(engine).counts["Later"]
            engine.abort(*gone)
            engine.run()
            check_answers(engine, [request for request in wanted if request.request_id not in gone])
        # With a step at a time, what is loaded within the step is there when the step is over.
        possible = self.loads and (depth > 1 or waits > 0)
        assert during > 0 or not possible, "no abort fell into a load"

    def test_few_blocks_and_preemption(self, make: Callable[..., ToyEngine]) -> None:
        wanted = requests(5, output=40)
        run(make(), wanted)
        engine = make(blocks=24, watermark=0.0)
        run(engine, wanted)
        self.demand_hits(engine)
        preempted = engine.scheduler.stats().preemptions > 0
        assert preempted or not self.punctual, "nobody was preempted"

    @pytest.mark.parametrize("policy", POLICIES)
    def test_any_block_may_fail_to_load(
        self, make: Callable[..., ToyEngine], board: Any, policy: str
    ) -> None:
        for number, kinds in enumerate(self.served(board)):
            wanted = requests(2, 40, 3, output=5, salt=f"{number}")
            run(make(kinds=kinds), wanted)
            engine = make(kinds=kinds)
            run(engine, wanted)
            entries = loaded_entries(engine)
            # With recurrent state among the groups a hit ends where a state was kept.
            whole = entries if {"state", "all"} & set(kinds.split()) else set(range(5))
            enough = bool(entries) and entries >= whole
            assert enough or not self.loads, f"{kinds}: {entries} were loaded"
            for entry in sorted(entries):
                depth = 1 + (entry + number) % 2
                engine = make(policy, kinds=kinds, faults=spoiling(entry), depth=depth)
                spoiled = self._run_with_faults(engine, wanted, policy)
                assert spoiled, f"{kinds}: no load of block {entry} was spoiled"

    def _run_with_faults(self, engine: ToyEngine, wanted: list[EngineRequest], policy: str) -> int:
        """Run while loads fail, then again on the same engine; pieces that failed."""
        executor = engine.executor
        assert isinstance(executor, PagedToyExecutor)
        healthy = toy_request("healthy", [95] * 5, 12)  # too short for any block to be loaded
        for request in [*wanted, healthy]:
            engine.add(request)
        engine.run()
        failed = [r for r in wanted if engine.told[r.request_id].finish_reason == "error"]
        assert bool(failed) == (policy == "fail" and executor.spoiled > 0)
        for request in failed:
            last = engine.told[request.request_id].last
            assert last is not None and "outside" in (last.error or ""), last
        check_answers(engine, [r for r in [*wanted, healthy] if r not in failed])
        executor.faults.spoils = lambda load, piece: False
        run(engine, wanted)  # bad blocks are in no cache
        return executor.spoiled

    @pytest.mark.parametrize("how", ["double", "late", "missing", "unknown"])
    def test_reports_may_be_double_late_missing_or_unknown(
        self, make: Callable[..., ToyEngine], how: str
    ) -> None:
        run(make(), requests())
        clock = Clock()
        engine = make(faults=Faults(distort=distortion(how)), clock=clock)
        wanted = requests()
        for request in wanted:
            engine.add(request)
        for steps in range(30):
            engine.step()
            if steps == 2:
                engine.abort("r1")
        while engine.scheduler.has_work():
            clock.now += 1000.0 if how == "missing" else 0.0
            engine.step()
        check_answers(engine, [r for r in wanted if r.request_id != "r1"])
        assert isinstance(engine.executor, PagedToyExecutor)
        engine.executor.faults = Faults()
        run(engine, requests())

    def test_a_scheduler_half_that_breaks_down_harms_no_request(
        self, make: Callable[..., ToyEngine]
    ) -> None:
        run(make(), requests())
        for seed in range(6):
            draws, clock = random.Random(seed), Clock()
            engine = make(fails=lambda name, d=draws: d.random() < 0.3, clock=clock)
            for request in requests(8):
                engine.add(request)
            for _ in range(100):
                engine.step()
                clock.now += 10.0
            engine.run()
            check_answers(engine, requests(8))
            assert self._half(engine).counts["failures"] > 0

    @pytest.mark.parametrize("depth", [1, 2])
    @pytest.mark.parametrize("caching", [True, False])
    def test_random_operations_lose_no_block(
        self, make: Callable[..., ToyEngine], board: Any, caching: bool, depth: int
    ) -> None:
        self.storm(make, self.served(board)[-1], caching, depth, self.operations)

    def storm(
        self, make: Callable[..., ToyEngine], kinds: str, caching: bool, depth: int, operations: int
    ) -> None:
        """So many random operations on a small engine, some loads failing."""

        def spoils(load: Load, piece: Piece) -> bool:
            return (31 * load.load_id + 7 * piece.group + piece.entry) % 23 == 0

        storm = Storm(
            operations,
            lambda: make(
                kinds=kinds,
                blocks=70,
                depth=depth,
                watermark=0.0,
                max_num_batched_tokens=48,
                max_num_seqs=6,
                enable_prefix_caching=caching,
                faults=Faults(spoils=spoils),
            ),
        )
        storm.run(operations)
        for name in ("added", "length", "abort", "stop"):
            assert storm.done[name] > 0, f"{name}: never"
        assert storm.done["loaded tokens"] > 0 or caching or not self.loads, "nothing was loaded"
