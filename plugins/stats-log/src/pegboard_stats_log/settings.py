"""What operators may set."""

from __future__ import annotations

from typing import Any

import attrs

from pegboard.errors import ConfigError

__all__ = ["Settings"]


@attrs.frozen
class Settings:
    """Of ``plugin_config={"stats-log": {…}}``."""

    interval: float = attrs.field(default=10.0)
    """Seconds between two lines."""

    @interval.validator
    def _check(self, _: Any, value: float) -> None:
        if not 0 < value < float("inf"):
            raise ConfigError(f"interval={value!r} is not allowed: seconds, above 0")
