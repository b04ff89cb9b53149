"""Engine settings that decide how plugins are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from pegboard import EngineConfig
from pegboard.config.plugin_policy import policy_of
from pegboard.errors import ConfigError
from pegboard.plugins import LoadPolicy


def test_by_default_plugins_are_loaded_as_usual() -> None:
    assert policy_of(EngineConfig(model="m")) == LoadPolicy()


def test_every_setting_reaches_the_policy() -> None:
    config = EngineConfig(
        model="m",
        strict_plugins=True,
        no_plugins_except="llama,cpu",
        plugins_lock=Path("some.lock"),
    )
    policy = attrs.asdict(policy_of(config))
    assert policy["strict"] is True
    assert policy["only"] == "llama,cpu"
    assert policy["lock"] == "some.lock"


def test_a_second_list_may_be_empty_which_is_not_none() -> None:
    assert policy_of(EngineConfig(model="m", no_plugins_except="")).only == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("strict_plugins", "yes"),
        ("no_plugins_except", ["llama"]),
        ("no_plugins_except", True),
        ("plugins_lock", ""),
        ("plugins_lock", 3),
    ],
)
def test_a_bad_value_is_refused_with_what_is_allowed(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{name}=.* is not allowed: .+"):
        EngineConfig(model="m", **{name: value})
