"""The connector kit, run by a connector that was made for vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from pegboard.api.connector import KVConnector
from pegboard.plugins import load_plugins
from pegboard_testkit.connector_kit import ConnectorKit


@pytest.mark.accept
class TestLegacyConnector(ConnectorKit):
    connector = "shelf"
    operations = 200

    @pytest.fixture(scope="class")
    @classmethod
    def board(cls, shelf: KVConnector) -> Any:
        """The toy's storage has a layout of its own; this connector copes with any."""
        anywhere = attrs.evolve(shelf, abilities=attrs.evolve(shelf.abilities, layouts=()))
        return load_plugins(environ={"VLLM_PLUGINS": ""}, extra=[("connector", anywhere)])

    def settings(self, folder: Path) -> Mapping[str, Any]:
        return {"path": str(folder / "kv")}


@pytest.mark.accept
class TestLegacyConnectorThatLoadsBetweenSteps(TestLegacyConnector):
    def settings(self, folder: Path) -> Mapping[str, Any]:
        return {"path": str(folder / "kv"), "later": True}
