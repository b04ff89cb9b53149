"""What `kv_events_config` may say, and what is said about the rest."""

from __future__ import annotations

from typing import Any

import pytest

from pegboard import EngineConfig
from pegboard.cli.options import engine_options
from pegboard.config.kv_events import KVEventsConfig
from pegboard.errors import ConfigError


def config(value: Any, **options: Any) -> EngineConfig:
    return EngineConfig(model="m", kv_events_config=value, **options)


def test_a_mapping_and_its_json_are_the_same() -> None:
    given = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://*:1"}
    text = '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:1"}'
    expected = KVEventsConfig(
        enable_kv_cache_events=True, publisher="zmq", options={"endpoint": "tcp://*:1"}
    )
    assert config(given).kv_events_config == config(text).kv_events_config == expected
    options = engine_options([f"kv-events-config={text}"], {})
    assert EngineConfig(model="m", **options).kv_events_config == expected


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (None, False),
        ({}, False),
        ({"enable_kv_cache_events": False, "publisher": "zmq"}, False),
        ({"enable_kv_cache_events": True, "publisher": "null"}, False),
        ({"enable_kv_cache_events": True}, True),
        ({"enable_kv_cache_events": True, "publisher": "any"}, True),
    ],
)
def test_events_are_made_only_for_somebody(value: Any, wanted: bool) -> None:
    assert config(value).wants_kv_events is wanted


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{", "kv_events_config='{' is not allowed: a mapping, or the JSON of one"),
        ("[]", "a mapping, or the JSON of one"),
        ("[" * 100_000, "a mapping, or the JSON of one"),
        (7, "kv_events_config=7"),
        ({1: 2}, "kv_events_config={1: 2}"),
        ({"enable_kv_cache_events": 1}, "enable_kv_cache_events=1 is not allowed: true or false"),
        ({"enable_kv_cache_events": True, "publisher": ""}, "publisher=''"),
        ({"enable_kv_cache_event": True}, "did you mean 'enable_kv_cache_events'"),
        ({"publishers": "zmq"}, "did you mean 'publisher'"),
    ],
)
def test_anything_else_is_refused_by_name(value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(value)
    assert message in str(caught.value)


def test_events_need_a_prefix_cache() -> None:
    on = {"enable_kv_cache_events": True}
    with pytest.raises(ConfigError, match="enable_prefix_caching=False is not allowed"):
        config(on, enable_prefix_caching=False)
    assert not config(None, enable_prefix_caching=False).wants_kv_events
