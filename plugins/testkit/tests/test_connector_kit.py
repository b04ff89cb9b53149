"""The connector kit, run by the scripted connector with every outcome.

Of the reported cases it holds O14 and O15 (keys of outside stores), O16 (late, double and missing
reports) and O17 (hits on whole prompts).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pegboard.testing.scripted_connector import Script
from pegboard.testing.toy_engine import ToyEngine
from pegboard_testkit.connector_kit import ConnectorKit

FEW = ("full", "sliding and full", "all that have hits")


class TestLoadsNow(ConnectorKit):
    connector = "scripted"

    def settings(self, folder: Path) -> Mapping[str, Any]:
        return {"script": Script(outcomes=("now",))}


class TestLoadsLater(ConnectorKit):
    connector = "scripted"
    kinds = FEW

    def settings(self, folder: Path) -> Mapping[str, Any]:
        return {"script": Script(outcomes=("later", "pending"), holds=True, keeps=True)}


class TestEveryOutcome(ConnectorKit):
    connector = "scripted"
    kinds = FEW

    def settings(self, folder: Path) -> Mapping[str, Any]:
        return {"script": Script(outcomes=("now", "later", "pending"), delay=3, holds=True)}

    @pytest.mark.accept
    @pytest.mark.timeout(1800)
    @pytest.mark.parametrize("kinds", ["full", "all that have hits"])
    def test_100000_random_operations_lose_no_block(
        self, make: Callable[..., ToyEngine], kinds: str
    ) -> None:
        self.storm(make, kinds, caching=True, depth=2, operations=100_000)
