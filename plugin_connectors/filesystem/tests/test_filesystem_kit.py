"""The connector kit, run by ``filesystem``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pegboard.api.connector import KVTransferConfig
from pegboard.testing.toy_connected import Clock, connected_engine, installed_board
from pegboard.testing.toy_engine import ToyEngine, toy_request
from pegboard_connector_filesystem.folder import Folder
from pegboard_testkit.connector_case import Storm, check_answers, run
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


@pytest.mark.parametrize("depth", [1, 2])
def test_a_slow_disk_fills_nobodys_blocks_though_the_scheduler_half_breaks_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    """Time is up while a file is read, and no step tells the worker: the blocks are all needed."""
    extra = {"path": str(tmp_path), "threads": 1}
    config = KVTransferConfig(kv_connector="filesystem", kv_connector_extra_config=extra)
    stored = [toy_request("slow", list(range(50)), 30)]
    first = connected_engine(installed_board(), config, block_size=8)
    run(first, stored)
    first.close()
    go, begun, read = threading.Event(), threading.Event(), Folder.read

    def slow(*args: Any) -> None:
        begun.set()
        assert go.wait(10)
        read(*args)

    monkeypatch.setattr(Folder, "read", slow)
    clock, broken = Clock(), set[str]()
    options = {"block_size": 8, "blocks": 24, "watermark": 0.0, "depth": depth, "clock": clock}
    engine = connected_engine(installed_board(), config, fails=broken.__contains__, **options)
    others = [toy_request(f"other{n}", [80 + n] * 30, 30) for n in range(3)]
    for request in stored + others:
        engine.add(request)
    engine.step()
    assert begun.wait(10)
    broken.add("step")
    clock.now = 1000.0
    for _ in range(12):
        engine.step()
    go.set()
    engine.run()
    check_answers(engine, stored + others)
    engine.close()
