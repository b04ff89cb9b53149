"""What a metric was at one moment. Part of `pegboard.api.metrics`."""

from __future__ import annotations

import msgspec

__all__ = ["MetricReading"]


class MetricReading(msgspec.Struct, frozen=True):
    """A metric as it was at one moment, which other processes can be told."""

    name: str
    kind: str
    """``"counter"``, ``"gauge"`` or ``"histogram"``."""
    about: str
    plugin_id: str
    value: float = 0.0
    """Of a histogram the sum of what was observed."""
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram."""
    cumulative: tuple[int, ...] = ()
    """By bucket, how many observations are at most its bound; last, how many there are."""
