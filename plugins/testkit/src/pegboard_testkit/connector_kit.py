"""Conformance kit for the surface *connector*: outside caches for keys and values.

A test file of a connector subclasses `ConnectorKit`, names the installed connector and its
settings, and gets the tests below::

    class TestMyConnector(ConnectorKit):
        connector = "mine"

        def settings(self, folder):
            return {"path": str(folder)}

A toy model runs over real storage with the connector between two engines: what the first one saves
the second one loads. In each step all content that a row reads is compared with what it must be, so
a wrong byte shows at once; answers are compared with those of a run alone; every block is counted.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pegboard.api.connector import (
    KVConnector,
    KVTransferConfig,
    Load,
    Piece,
)
from pegboard.api.views import EngineRequest
from pegboard.errors import ConfigError
from pegboard.testing.toy_connected import (
    Clock,
    InsistentHalf,
    connected_engine,
    installed_board,
)
from pegboard.testing.toy_engine import ToyEngine, toy_request
from pegboard.testing.toy_paged import Faults, PagedToyExecutor
from pegboard_testkit.connector_case import (
    Storm,
    check_answers,
    distortion,
    family,
    loaded_entries,
    requests,
    run,
    spoiling,
)

__all__ = ["ConnectorKit"]

POLICIES = ("recompute", "fail")


class ConnectorKit:
    """Tests of a connector; subclass it in a test file under a name that begins with ``Test``.

    `connector` must be given. A connector that loads nothing in the second engine by its nature
    (one that only sends, say) has `loads` False; then hits are not demanded. One whose threads work
    beside the steps has `punctual` False; then what depends on the time a load takes is not
    demanded.
    """

    connector: str
    loads: bool = True
    punctual: bool = True
    kinds: Sequence[str] = (
        *("full", "latent", "sliding and full", "chunked and full"),
        *("state and full", "state at every border and full", "all that have hits"),
    )
    """Toy models (of `pegboard.testing.toy_kinds`) that are tried, as far as the abilities go."""
    operations: int = 400
    """Random operations of each storm; a long test may call `storm` with more."""

    def settings(self, folder: Path) -> Mapping[str, Any]:
        """``kv_connector_extra_config`` of engines that share what is stored; `folder` is theirs.

        Called once per test.
        """
        return {}

    # What the tests are made of

    @pytest.fixture(scope="class")
    @classmethod
    def board(cls) -> Any:
        """What is installed."""
        return installed_board()

    @pytest.fixture
    def make(self, board: Any, tmp_path: Path) -> Iterator[Callable[..., ToyEngine]]:
        """Makes engines that share one store; keywords as of `connected_engine`."""
        shared, made = self.settings(tmp_path), list[ToyEngine]()

        def build(policy: str = "recompute", role: str = "kv_both", **options: Any) -> ToyEngine:
            for engine in made:  # one at a time, as after a restart
                engine.close()
            made.clear()
            config = self.config(shared, policy, role)
            engine = connected_engine(board, config, **{"block_size": 8, **options})
            made.append(engine)
            return engine

        yield build
        for engine in made:
            engine.close()

    def config(
        self, extra: Mapping[str, Any], policy: str = "recompute", role: str = "kv_both"
    ) -> KVTransferConfig:
        """Settings of one engine."""
        return KVTransferConfig(
            kv_connector=self.connector,
            kv_role=role,
            kv_connector_extra_config=extra,
            kv_load_failure_policy=policy,
        )

    def descriptor(self, board: Any) -> KVConnector:
        """The connector's descriptor."""
        found: KVConnector = board.require("connector", self.connector, wanted_by="the kit")
        return found

    def served(self, board: Any) -> list[str]:
        """Those of `kinds` that the connector claims to serve."""
        abilities = self.descriptor(board).abilities
        if not abilities.groups:
            return [kind for kind in self.kinds if kind in (abilities.kinds or ("full", "latent"))]
        names = abilities.kinds
        words = {"state": "recurrent"}
        return [
            kind
            for kind in self.kinds
            if not names or all(words.get(w, w) in names for w in kind.split(" and "))
        ]

    def demand_hits(self, engine: ToyEngine, least: int = 1) -> None:
        """Fail if the engine loaded nothing, unless that is its nature."""
        found = engine.scheduler.stats().cache.external_hit_tokens
        assert not self.loads or found >= least, f"{found} tokens were loaded"

    # The tests

    def test_the_scheduler_half_imports_no_torch(self, board: Any) -> None:
        module = str(self.descriptor(board).scheduler).partition(":")[0]
        code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

    def test_an_unknown_setting_is_refused(self, board: Any, tmp_path: Path) -> None:
        extra = {**self.settings(tmp_path), "no_such_setting": 1}
        with pytest.raises(ConfigError, match="no_such_setting"):
            connected_engine(board, self.config(extra))

    @pytest.mark.parametrize("caching", [True, False])
    def test_a_second_engine_loads_what_the_first_one_saved(
        self, make: Callable[..., ToyEngine], board: Any, caching: bool
    ) -> None:
        for number, kinds in enumerate(self.served(board)):
            salted = requests(salt=f"{number}")  # each model has blocks of its own
            options = {"kinds": kinds, "enable_prefix_caching": caching, "depth": 1 + number % 2}
            run(make(**options), salted)
            engine = make(**options)
            run(engine, salted)
            self.demand_hits(engine, 48)  # what all requests begin with, once at least
            self._print_hits(kinds, engine)

    @pytest.mark.parametrize("length", [31, 32, 33])
    def test_at_least_the_last_token_of_a_prompt_is_computed(
        self, make: Callable[..., ToyEngine], length: int
    ) -> None:
        prompt = requests(1, length, 0)
        run(make(block_size=16), prompt)
        engine = make(block_size=16)
        run(engine, prompt)
        last = engine.told["r0"].last
        assert last is not None
        assert last.cached_tokens == ((length - 1) // 16 * 16 if self.loads else 0)

    def test_questions_may_be_asked_again(self, make: Callable[..., ToyEngine]) -> None:
        run(make(), requests())
        engine = make(max_num_seqs=1)  # who waits is asked about again and again
        run(engine, requests())
        half = self._half(engine)
        assert half.counts["match"] > 1, "nothing was asked"
        assert half.counts["finished"] == 4, "each request ends once"

    def test_sequences_of_one_request_share_what_was_loaded(
        self, make: Callable[..., ToyEngine]
    ) -> None:
        run(make(), family(3))
        engine = make()
        run(engine, family(3))
        self.demand_hits(engine, 40)
        assert engine.scheduler.stats().cache.external_hit_tokens <= 40, "loaded once for all"

    def test_other_salts_adapters_and_media_find_nothing(
        self, make: Callable[..., ToyEngine]
    ) -> None:
        ids, media = list(range(50)), [(3, 4, b"\0" * 32)]
        run(make(), [toy_request("a", ids, 4, media=media)])
        others: list[dict[str, Any]] = [
            {},
            {"media": media, "cache_salt": "tenant"},
            {"media": media, "adapter": "adapter"},
            {"media": [(3, 4, b"\1" + b"\0" * 31)]},
            {"media": [(2, 4, b"\0" * 32)]},
        ]
        for other in others:
            engine = make(role="kv_consumer")
            run(engine, [toy_request("b", ids, 4, **other)])
            assert engine.scheduler.stats().cache.external_hit_tokens == 0, other
        engine = make()
        run(engine, [toy_request("c", ids, 4, media=media)])
        self.demand_hits(engine, 48)

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

    def test_the_cache_can_be_reset(self, make: Callable[..., ToyEngine]) -> None:
        engine = make()
        run(engine, requests())
        assert engine.scheduler.reset_prefix_cache()
        run(engine, requests())

    def test_a_producer_asks_nothing_and_a_consumer_saves_nothing(
        self, make: Callable[..., ToyEngine]
    ) -> None:
        run(make(role="kv_consumer"), requests())
        engine = make()
        run(engine, requests())
        assert engine.scheduler.stats().cache.external_hit_tokens == 0, "a consumer saved"
        engine = make(role="kv_producer")
        run(engine, requests())
        assert self._half(engine).counts["match"] == 0, "a producer asked"

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

    def _half(self, engine: ToyEngine) -> InsistentHalf:
        assert engine.connected is not None
        half = engine.connected.half
        assert isinstance(half, InsistentHalf)
        return half

    def _print_hits(self, kinds: str, engine: ToyEngine) -> None:
        cache = engine.scheduler.stats().cache
        asked, found = cache.external_queried_tokens, cache.external_hit_tokens
        print(f"{self.connector}, {kinds}: {found} of {asked} tokens came from outside")
