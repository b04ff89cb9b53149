"""The connector kit, run by a connector that was made for vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from pegboard.api.connector import KVConnector
from pegboard.testing.boards import board_with
from pegboard_testkit.connector_kit import ConnectorKit


@pytest.mark.accept
class TestLegacyConnector(ConnectorKit):
    connector = "anywhere"
    operations = 200

    @pytest.fixture(scope="class")
    @classmethod
    def board(cls, shelf: KVConnector) -> Any:
        """The toy's storage has a layout of its own; this connector copes with any."""
        abilities = attrs.evolve(shelf.abilities, layouts=())
        return board_with("connector", attrs.evolve(shelf, name="anywhere", abilities=abilities))

    def settings(self, folder: Path) -> Mapping[str, Any]:
        return {"path": str(folder / "kv")}


@pytest.mark.accept
class TestLegacyConnectorThatLoadsBetweenSteps(TestLegacyConnector):
    def settings(self, folder: Path) -> Mapping[str, Any]:
        return {"path": str(folder / "kv"), "later": True}
