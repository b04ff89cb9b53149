"""Engine settings as plain values, which another process can be told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from pegboard.config.engine import EngineConfig

__all__ = ["config_from_plain", "plain_config"]

_EVENTS = "kv_events_config"


def plain_config(config: EngineConfig) -> dict[str, Any]:
    """Every setting by name, as `EngineConfig` takes it. What plugins are given stays as it is."""
    values = attrs.asdict(config)
    events = values[_EVENTS]
    if events is not None:  # the publisher's own keys stand beside the others
        values[_EVENTS] = {**events.pop("options"), **events}
    return values


def config_from_plain(values: Mapping[str, Any]) -> EngineConfig:
    """The settings that `plain_config` was given."""
    return EngineConfig(**values)
