"""Kits hand a plugin its settings: those that it declares, or those that the author gives."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

from pegboard.api.checkpoint import TokenizerSpec
from pegboard.testing.boards import Board, board_with, built_tokenizer
from pegboard.testing.checkpoints import ByteVocabulary
from pegboard.testing.distributions import installed
from pegboard_testkit.attention_kit import AttentionKit
from pegboard_testkit.endpoint_kit import EndpointKit
from pegboard_testkit.events_kit import EventsKit
from pegboard_testkit.logits_kit import LogitsKit
from pegboard_testkit.own_settings import OwnSettings
from pegboard_testkit.platform_kit import PlatformKit
from pegboard_testkit.quant_kit import QuantKit
from pegboard_testkit.stat_logger_kit import StatLoggerKit
from pegboard_testkit.tracer_kit import TracerKit

SOURCE = """
import attrs
from pegboard.api.attention import AttentionBackend
from pegboard.api.endpoint import Endpoint
from pegboard.api.events import EventPublisher
from pegboard.api.hooks import hookimpl
from pegboard.api.logits import LogitsProcessor
from pegboard.api.platform import Platform
from pegboard.api.quant import QuantFormat
from pegboard.api.scheduler_class import SchedulerClass
from pegboard.api.stat_logger import StatLogger
from pegboard.api.tokenizer import TokenizerClass
from pegboard.api.tracer import Tracer

PEGBOARD_API = {
    "attention": 0,
    "endpoint": 0,
    "events": 0,
    "logits": 0,
    "platform": 0,
    "quant": 0,
    "scheduler": 0,
    "stat_logger": 0,
    "tokenizer": 0,
    "tracer": 0,
}
SEEN = []


class Told(Exception):
    pass


def sees(ctx, settings=None):
    SEEN.append(getattr(ctx, "settings", settings))
    raise Told


@attrs.frozen
class Settings:
    depth: int = 2


@hookimpl
def pegboard_settings():
    return Settings


REF = "keen_plugin:sees"
ATTENTION = AttentionBackend(name="keen", kernel=REF, platforms=("cpu",), priority=-90)
ENDPOINT = Endpoint("keen", REF)
EVENTS = EventPublisher("keen", REF)
LOGITS = LogitsProcessor(name="keen", build=REF, check=REF, arguments=("keen",))
PLATFORM = Platform(name="keen", probe=REF, runtime=REF, priority=-90, takes_settings=True)
QUANT = QuantFormat(name="keen", quantizer=REF, methods=("keen",), covers=("linear",))
SCHEDULER = SchedulerClass("keen", REF)
STAT_LOGGER = StatLogger("keen", open=REF)
TOKENIZER = TokenizerClass("keen", REF)
TRACER = Tracer("keen", REF)


@hookimpl
def pegboard_attention_backends():
    return [ATTENTION]


@hookimpl
def pegboard_endpoints():
    return [ENDPOINT]


@hookimpl
def pegboard_event_publishers():
    return [EVENTS]


@hookimpl
def pegboard_logits_processors():
    return [LOGITS]


@hookimpl
def pegboard_platforms():
    return [PLATFORM]


@hookimpl
def pegboard_quant_formats():
    return [QUANT]


@hookimpl
def pegboard_schedulers():
    return [SCHEDULER]


@hookimpl
def pegboard_stat_loggers():
    return [STAT_LOGGER]


@hookimpl
def pegboard_tokenizers():
    return [TOKENIZER]


@hookimpl
def pegboard_tracers():
    return [TRACER]
"""


@pytest.fixture(scope="module")
def keen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An installed plugin that writes down the settings that it is handed."""
    with installed(tmp_path_factory.mktemp("keen"), "keen", "keen_plugin", SOURCE):
        yield importlib.import_module("keen_plugin")


Kit = tuple[type[OwnSettings], str, str, Callable[[Any], Any]]
KITS: dict[str, Kit] = {
    "attention": (AttentionKit, "backend", "ATTENTION", lambda kit: kit.case([3])),
    "endpoint": (EndpointKit, "endpoint", "ENDPOINT", lambda kit: kit._routes()),
    "events": (EventsKit, "publisher", "EVENTS", lambda kit: kit._open({})),
    "logits": (LogitsKit, "processor", "LOGITS", lambda kit: kit._built()),
    "logits-check": (LogitsKit, "processor", "LOGITS", lambda kit: kit._check({"keen": 1})),
    "platform": (PlatformKit, "platform", "PLATFORM", lambda kit: kit._opened()),
    "quant": (
        QuantKit,
        "format",
        "QUANT",
        lambda kit: kit.format.quantizer.load()(kit._context("float32", "stored")),
    ),
    "stat_logger": (StatLoggerKit, "logger", "STAT_LOGGER", lambda kit: kit._opened()),
    "tracer": (TracerKit, "tracer", "TRACER", lambda kit: kit._opened()),
}


def told(keen: Any, do: Callable[[], Any]) -> Any:
    """The settings that the plugin is handed in the meantime."""
    keen.SEEN.clear()
    with pytest.raises(keen.Told):
        do()
    (found,) = keen.SEEN
    return found


@pytest.mark.parametrize("name", KITS)
def test_a_kit_hands_over_what_the_plugin_declares_or_what_it_is_given(
    name: str, keen: Any
) -> None:
    base, attribute, descriptor, do = KITS[name]
    described = {attribute: getattr(keen, descriptor)}
    usual, deep = type("Usual", (base,), dict(described))(), type("Deep", (base,), dict(described))
    deep.settings = keen.Settings(depth=7)
    assert told(keen, lambda: do(usual)) == keen.Settings(depth=2)
    assert told(keen, lambda: do(deep())) == keen.Settings(depth=7)


def test_settings_of_another_class_are_refused(keen: Any) -> None:
    wrong = type("Wrong", (LogitsKit,), {"processor": keen.LOGITS, "settings": {"depth": 7}})
    with pytest.raises(AssertionError, match="must be an instance of Settings"):
        wrong()._built()


@pytest.mark.parametrize("surface", ["logits", "scheduler", "events"])
def test_a_board_for_engines_has_them_too(surface: str, keen: Any) -> None:
    descriptor = getattr(keen, surface.upper())
    board: Board = board_with(surface, descriptor)
    assert board.settings(surface, "keen") == keen.Settings(depth=2)
    board = board_with(surface, descriptor, settings=keen.Settings(depth=7))
    assert board.settings(surface, "keen") == keen.Settings(depth=7)


def test_a_tokeniser_gets_them(keen: Any) -> None:
    spec = attrs.evolve(ByteVocabulary().spec(), kind="keen")
    assert isinstance(spec, TokenizerSpec)
    deep = keen.Settings(depth=7)
    for given, wanted in ((None, keen.Settings()), (deep, deep)):
        keen.SEEN.clear()
        with pytest.raises(Exception, match="failed to build"):
            built_tokenizer(keen.TOKENIZER, spec, given)
        (found,) = keen.SEEN
        assert found == wanted


def test_an_endpoints_own_context_may_say_otherwise(keen: Any) -> None:
    class Own(EndpointKit):
        endpoint = keen.ENDPOINT

        def context(self) -> Any:
            return attrs.evolve(super().context(), settings=keen.Settings(depth=9))

    assert told(keen, Own()._routes) == keen.Settings(depth=9)


def test_what_is_not_installed_gets_what_it_is_given(keen: Any) -> None:
    stranger = attrs.evolve(keen.LOGITS, name="stranger")
    assert told(keen, type("K", (LogitsKit,), {"processor": stranger})()._built) is None
    given = type("K", (LogitsKit,), {"processor": stranger, "settings": keen.Settings(5)})
    assert told(keen, given()._built) == keen.Settings(depth=5)
