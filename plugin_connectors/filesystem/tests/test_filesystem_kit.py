"""The connector kit, run by ``filesystem``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pegboard_testkit.connector_kit import ConnectorKit


class TestFilesystemLru(ConnectorKit):
    connector = "filesystem"
    kinds = ("full", "sliding and full", "all that have hits")
    operations = 200

    def settings(self, folder: Path) -> Mapping[str, Any]:
        return {"path": str(folder / "kv")}


class TestFilesystemArcWithLittleRoom(ConnectorKit):
    connector = "filesystem"
    kinds = ("full", "state and full")
    operations = 150

    def settings(self, folder: Path) -> Mapping[str, Any]:
        return {"path": str(folder / "kv"), "eviction": "arc", "threads": 1, "max_bytes": 300_000}
