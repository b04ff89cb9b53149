"""The kits of commands, endpoints, event publishers and stat loggers pass right plugins and fail
wrong ones, each in the test meant for it."""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from pegboard.api.command import Command
from pegboard.api.endpoint import Endpoint, EndpointContext, Route
from pegboard.api.events import EventPublisher, KVEventBatch, PublisherSettings, PublisherStats
from pegboard.api.stat_logger import StatLogger, StatLoggerContext, StepStats
from pegboard.errors import ConfigError
from pegboard.testing.boards import board_of
from pegboard_testkit.command_kit import CommandKit
from pegboard_testkit.endpoint_kit import EndpointKit
from pegboard_testkit.events_kit import EventsKit
from pegboard_testkit.stat_logger_kit import StatLoggerKit

PARTS = "outer_kits_of_tests"


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module for lazy references."""
    module = types.ModuleType(PARTS)
    monkeypatch.setitem(sys.modules, PARTS, module)
    vars(module).update(Counter=Counter, Diary=Diary, routes=good_routes, Deaf=Deaf, Slow=Slow)
    return module


class TestNew(CommandKit):
    command = board_of("testkit").require("command", "plugins new", wanted_by="its tests")
    refused = (("logits",), ("logits", "Not A Name"))


@pytest.mark.parametrize(
    ("changes", "test", "told"),
    [
        ({"refused": (("--help",),)}, "test_bad_input_is_refused_without_a_traceback", "code 0"),
        ({"allowed": (("no-surface", "mine"),)}, "test_what_it_is_for_succeeds", "exit code 2"),
        (
            {"command": Command("plugins new", "Two\nlines", "a:b")},
            "test_the_help_of_pegboard_names_it_and_imports_nothing_of_it",
            "no line",
        ),
    ],
)
def test_a_wrong_command_is_told(changes: Mapping[str, Any], test: str, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        getattr(type("Wrong", (TestNew,), dict(changes))(), test)()


async def answer(request: object) -> dict[str, int]:
    return {}


def plain(request: object) -> dict[str, int]:
    return {}


async def too_many(request: object, more: object) -> dict[str, int]:
    return {}


ROUTES = [
    Route("GET", "/room", answer, "The room"),
    Route("GET", "/alive", answer, "Alive", public=True),
    Route("POST", "/rooms/{name}/doors", answer, "Doors"),
]


def good_routes(ctx: EndpointContext) -> list[Route]:
    return ROUTES


class TestRooms(EndpointKit):
    endpoint = Endpoint("rooms", routes=f"{PARTS}:routes")
    public = ("/alive",)


def evolved(number: int, **changes: Any) -> list[Route]:
    return [attrs.evolve(r, **changes) if i == number else r for i, r in enumerate(ROUTES)]


@pytest.mark.parametrize(
    ("routes", "test"),
    [
        ([], "test_there_are_routes_and_each_is_there_once"),
        ([*ROUTES, ROUTES[0]], "test_there_are_routes_and_each_is_there_once"),
        (evolved(0, handler="answer"), "test_handlers_are_functions_of_a_request"),
        (evolved(0, handler=too_many), "test_handlers_are_functions_of_a_request"),
        (evolved(0, summary=""), "test_each_route_says_in_a_line_what_it_is_for"),
        (evolved(0, public=True), "test_only_what_is_meant_to_be_is_public"),
        (evolved(1, public=False), "test_only_what_is_meant_to_be_is_public"),
        (evolved(0, path="/the room"), "test_paths_have_parts_that_need_no_escape"),
    ],
)
def test_wrong_routes_are_told(routes: list[Route], test: str, parts: Any) -> None:
    parts.routes = lambda ctx: routes
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(TestRooms(), test)()


def test_routes_that_change_with_every_server_are_told(parts: Any) -> None:
    left = list(ROUTES)
    parts.routes = lambda ctx: [left.pop()]
    with pytest.raises(AssertionError, match="changes what is made next"):
        TestRooms().test_the_same_routes_are_made_for_each_server()


def test_a_handler_may_be_an_object_or_a_plain_function() -> None:
    class Answer:
        async def __call__(self, request: object) -> dict[str, int]:
            return {}

    module: Any = sys.modules[PARTS]
    for handler in (Answer(), plain):
        module.routes = lambda ctx, handler=handler: evolved(0, handler=handler)
        TestRooms().test_handlers_are_functions_of_a_request()


class Counter:
    """A publisher that counts."""

    def __init__(self, settings: PublisherSettings) -> None:
        if settings.options:
            raise ConfigError(f"kv_events_config: there are no options, not {settings.options!r}")
        self._stats = PublisherStats()

    def publish(self, batch: KVEventBatch) -> None:
        self._stats.published += 1

    def stats(self) -> PublisherStats:
        return self._stats

    def close(self) -> None:
        """Nothing is open."""


class TestCounter(EventsKit):
    publisher = EventPublisher("counter", open=f"{PARTS}:Counter")
    refused = ({"colour": "red"},)


class _Lenient(Counter):
    def __init__(self, settings: PublisherSettings) -> None:
        super().__init__(PublisherSettings())


class _Forgetful(Counter):
    def publish(self, batch: KVEventBatch) -> None:
        if len(batch.events) == 1:
            super().publish(batch)


class _Blocking(Counter):
    def publish(self, batch: KVEventBatch) -> None:
        time.sleep(0.003)
        super().publish(batch)


class _Once(Counter):
    open = True

    def close(self) -> None:
        assert self.open, "closed twice"
        self.open = False


@pytest.mark.parametrize(
    ("wrong", "test"),
    [
        (_Lenient, "test_options_that_are_not_allowed_are_refused"),
        (_Forgetful, "test_every_batch_is_sent_dropped_or_waits"),
        (_Blocking, "test_every_batch_is_sent_dropped_or_waits"),
        (_Once, "test_it_closes_soon_and_a_second_time_does_nothing"),
    ],
)
def test_a_wrong_publisher_is_told(wrong: type[Counter], test: str, parts: Any) -> None:
    parts.Counter = wrong
    kit = TestCounter()
    kit.step_seconds = 0.001
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(kit, test)({})


class Diary:
    """A stat logger that remembers."""

    def __init__(self, ctx: StatLoggerContext) -> None:
        self.steps: list[int] = []

    def record(self, stats: StepStats) -> None:
        self.steps.append(stats.step_id)

    def close(self) -> None:
        """Nothing is open."""


class Deaf(Diary):
    def record(self, stats: StepStats) -> None:
        raise ValueError("it does not hear")


class Slow(Diary):
    def record(self, stats: StepStats) -> None:
        time.sleep(0.02)


class TestDiary(StatLoggerKit):
    logger = StatLogger("diary", open=f"{PARTS}:Diary")


class _SlowKit(TestDiary):
    logger = StatLogger("diary", open=f"{PARTS}:Slow")


class _DeafKit(TestDiary):
    logger = StatLogger("diary", open=f"{PARTS}:Deaf")


def test_a_logger_that_blocks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorders = _SlowKit().watch(monkeypatch)
    with pytest.raises(AssertionError, match=r"record takes 0\.\d+ s"):
        _SlowKit().test_it_is_told_of_every_step_and_request_and_holds_none_up(recorders, tmp_path)


def test_a_logger_that_fails_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AssertionError, match="stat logger failed"):
        _DeafKit().test_it_never_fails(tmp_path, caplog, monkeypatch)
