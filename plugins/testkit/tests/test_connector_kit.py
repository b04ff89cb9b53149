"""The connector kit, run by the scripted connector with every outcome."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pegboard.testing.scripted_connector import Script
from pegboard_testkit.connector_kit import ConnectorKit


class TestLoadsNow(ConnectorKit):
    connector = "scripted"

    def settings(self, folder: Path) -> Mapping[str, Any]:
        return {"script": Script(outcomes=("now",))}


class TestLoadsLater(ConnectorKit):
    connector = "scripted"

    def settings(self, folder: Path) -> Mapping[str, Any]:
        return {"script": Script(outcomes=("later", "pending"), holds=True, keeps=True)}


class TestEveryOutcome(ConnectorKit):
    connector = "scripted"

    def settings(self, folder: Path) -> Mapping[str, Any]:
        return {"script": Script(outcomes=("now", "later", "pending"), delay=3, holds=True)}
