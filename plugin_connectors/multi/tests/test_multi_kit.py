"""The connector kit, run by ``multi`` with several connectors inside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pegboard.testing.scripted_connector import Script
from pegboard_testkit.connector_kit import ConnectorKit


def scripted(**options: Any) -> dict[str, Any]:
    script = Script(**options)
    return {"kv_connector": "scripted", "kv_connector_extra_config": {"script": script}}


class TestMultiOfThree(ConnectorKit):
    connector = "multi"
    kinds = ("full", "state and full")
    operations = 200

    def settings(self, folder: Path) -> Mapping[str, Any]:
        return {
            "connectors": [
                scripted(outcomes=("now", "later"), holds=True, keeps=True),
                scripted(outcomes=("pending",), delay=3, holds=True, keeps=True),
                {**scripted(), "kv_role": "kv_consumer"},
            ]
        }


class TestMultiWhoseFirstBreaksDown(ConnectorKit):
    connector = "multi"
    kinds = ("full",)
    operations = 100

    def settings(self, folder: Path) -> Mapping[str, Any]:
        calls = frozenset({"match", "step", "finished", "report", "start_load", "poll"})
        return {"connectors": [scripted(breaks=calls), scripted(outcomes=("later", "now"))]}
