"""The connector kit, run by ``filesystem``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pegboard.api.connector import KVTransferConfig
from pegboard.testing.toy_connected import connected_engine, installed_board
from pegboard.testing.toy_engine import ToyEngine
from pegboard_testkit.connector_case import Storm
from pegboard_testkit.connector_kit import ConnectorKit


class TestFilesystem(ConnectorKit):
    connector = "filesystem"
    punctual = False
    kinds = ("full", "sliding and full", "all that have hits")
    operations = 200

    def settings(self, folder: Path) -> Mapping[str, Any]:
        return {"path": str(folder / "kv")}


@pytest.mark.accept
@pytest.mark.timeout(1800)
class TestFilesystemEveryKind(ConnectorKit):
    connector = "filesystem"
    punctual = False

    def settings(self, folder: Path) -> Mapping[str, Any]:
        return {"path": str(folder / "kv"), "eviction": "arc", "threads": 1, "fsync": True}

    def test_10000_operations(self, make: Callable[..., ToyEngine], board: Any) -> None:
        served = self.served(board)
        for kinds in (served[0], served[-1]):
            self.storm(make, kinds, True, 2, 10_000)


@pytest.mark.parametrize("eviction", ["lru", "arc"])
def test_a_storm_with_room_for_few_blocks(tmp_path: Path, eviction: str) -> None:
    def make() -> ToyEngine:
        extra = {"path": str(tmp_path), "eviction": eviction, "threads": 2, "max_bytes": 6000}
        config = KVTransferConfig(kv_connector="filesystem", kv_connector_extra_config=extra)
        options = {"block_size": 8, "max_num_batched_tokens": 48, "max_num_seqs": 6}
        return connected_engine(installed_board(), config, depth=2, watermark=0.0, **options)

    storm = Storm(3, make)
    storm.run(600)
    assert storm.done["loaded tokens"] > 0, "nothing was loaded"
    assert storm.engine.scheduler.stats().connector["filesystem_evictions"] > 0
    storm.engine.close()
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.kv")) <= 6000
