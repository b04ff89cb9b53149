"""What the tests of the connector kit stand on: engines that share one store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pegboard.api.connector import KVConnector, KVTransferConfig
from pegboard.testing.boards import with_settings
from pegboard.testing.toy_connected import InsistentHalf, connected_engine, installed_board
from pegboard.testing.toy_engine import ToyEngine

__all__ = ["ConnectorBase"]


class ConnectorBase:
    """The attributes of `ConnectorKit`, and what its tests are made of."""

    connector: str
    """Its name."""
    loads: bool = True
    """A second engine loads what the first one saved. False for one that by its nature does not,
    say because it only sends: then hits are not demanded."""
    punctual: bool = True
    """No threads work beside the steps. False: then what depends on the time that a load takes is
    not demanded."""
    kinds: Sequence[str] = (
        *("full", "latent", "sliding and full", "chunked and full"),
        *("state and full", "state at every border and full", "all that have hits"),
    )
    """Toy models (of `pegboard.testing.toy_kinds`) that are tried, as far as the abilities go."""
    operations: int = 400
    """Random operations of each storm; a long test may call `storm` with more."""

    plugin_settings: Any = None
    """Settings of the plugin as a whole: an instance of the class that its hook `pegboard_settings`
    returns. None: what it declares, with all defaults."""

    def settings(self, folder: Path) -> Mapping[str, Any]:
        """``kv_connector_extra_config`` of engines that share what is stored; `folder` is theirs.

        Called once per test.
        """
        return {}

    # What the tests are made of

    @pytest.fixture(scope="class")
    @classmethod
    def board(cls) -> Any:
        """What is installed; the plugin has `plugin_settings`, if they are given."""
        board = installed_board()
        if cls.plugin_settings is None:
            return board
        return with_settings(board, "connector", [cls.connector], cls.plugin_settings)

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

    def _half(self, engine: ToyEngine) -> InsistentHalf:
        assert engine.connected is not None
        half = engine.connected.half
        assert isinstance(half, InsistentHalf)
        return half

    def _print_hits(self, kinds: str, engine: ToyEngine) -> None:
        cache = engine.scheduler.stats().cache
        asked, found = cache.external_queried_tokens, cache.external_hit_tokens
        print(f"{self.connector}, {kinds}: {found} of {asked} tokens came from outside")
