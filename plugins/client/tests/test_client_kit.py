"""The conformance kit of commands."""

from __future__ import annotations

from typing import Any

from pegboard.testing.boards import board_of
from pegboard_testkit.command_kit import CommandKit


def registered(name: str) -> Any:
    return board_of("client").require("command", name, wanted_by="its tests")


class TestChat(CommandKit):
    command = registered("chat")


class TestRunBatch(CommandKit):
    command = registered("run-batch")


class TestBenchServe(CommandKit):
    command = registered("bench serve")
