"""What operators may set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from pegboard.errors import ConfigError

__all__ = ["PROTOCOLS", "Settings"]

PROTOCOLS = ("grpc", "http/protobuf")


@attrs.frozen
class Settings:
    """Of ``plugin_config={"tracing-otel": {…}}``."""

    protocol: str = attrs.field(default="grpc")
    """One of `PROTOCOLS`."""
    sample_ratio: float = attrs.field(default=1.0)
    """Share of the traces that begin here which are sent. A parent's decision comes first."""
    service_name: str = "pegboard"
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """Sent along with the spans, such as a key."""
    timeout: float = attrs.field(default=5.0)
    """Seconds that the collector gets to answer."""

    @protocol.validator
    def _check_protocol(self, _: Any, value: str) -> None:
        if value not in PROTOCOLS:
            raise ConfigError(f"protocol={value!r} is not allowed: {' or '.join(PROTOCOLS)}")

    @sample_ratio.validator
    def _check_ratio(self, _: Any, value: float) -> None:
        if not 0 <= value <= 1:
            raise ConfigError(f"sample_ratio={value!r} is not allowed: from 0 to 1")

    @timeout.validator
    def _check_timeout(self, _: Any, value: float) -> None:
        if not 0 < value < float("inf"):
            raise ConfigError(f"timeout={value!r} is not allowed: seconds, above 0")
