"""The conformance kit of the plugin's commands."""

from __future__ import annotations

from typing import Any

from pegboard.testing.boards import board_of
from pegboard_testkit.command_kit import CommandKit

BOARD = board_of("client")


def registered(name: str) -> Any:
    return BOARD.require("command", name, wanted_by="its tests")


class TestChat(CommandKit):
    command = registered("chat")
    refused = (("--temperature", "warm", "m"),)


class TestComplete(CommandKit):
    command = registered("complete")
    refused = (("--max-tokens", "many", "m"),)


class TestRunBatch(CommandKit):
    command = registered("run-batch")
    refused = ((), ("--max-concurrency", "0"))


class TestBenchServe(CommandKit):
    command = registered("bench serve")
    refused = (("--request-rate", "soon"),)


class TestBenchThroughput(CommandKit):
    command = registered("bench throughput")
    refused = ((),)
