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

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pegboard.errors import ConfigError
from pegboard.testing.toy_connected import connected_engine
from pegboard.testing.toy_engine import ToyEngine, toy_request
from pegboard_testkit.connector_case import family, requests, run
from pegboard_testkit.connector_faults import ConnectorFaults

__all__ = ["ConnectorKit"]


class ConnectorKit(ConnectorFaults):
    """Tests of a connector; subclass it in a test file under a name that begins with ``Test``.

    `connector` must be given; the other attributes may be changed.
    """

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
