"""The kinds of metrics: counters, gauges, histograms. Part of `pegboard.api.metrics`."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from threading import Lock
from typing import TYPE_CHECKING

from pegboard.errors import PluginError

if TYPE_CHECKING:
    from pegboard.api.metrics_reading import MetricReading

__all__ = ["Counter", "Gauge", "Histogram", "Metric"]


class Metric:
    """What all metrics have."""

    kind = ""
    value: float = 0
    """Of a counter or gauge."""

    def __init__(
        self, name: str, about: str, plugin_id: str, buckets: tuple[float, ...] = ()
    ) -> None:
        """`name` is the whole one, ``pegboard_plugin_<id>_<name>``."""
        self.name = name
        self.about = about
        self.plugin_id = plugin_id
        self.buckets = buckets
        """Upper bounds, rising, of a histogram."""
        self._lock = Lock()

    def reading(self) -> MetricReading:
        """The metric as it is now."""
        from pegboard.api.metrics_reading import MetricReading  # start-up must be quick

        return MetricReading(self.name, self.kind, self.about, self.plugin_id, self.value)

    def like(self, other: Metric) -> bool:
        """Whether both are the same declaration."""
        return (type(self), self.about, self.plugin_id, self.buckets) == (
            type(other),
            other.about,
            other.plugin_id,
            other.buckets,
        )


class Counter(Metric):
    """A number that only rises."""

    kind = "counter"

    def add(self, amount: float = 1) -> None:
        """Raises `PluginError` for a negative amount."""
        if amount < 0:
            raise PluginError(f"counter {self.name} cannot fall, by {amount}")
        with self._lock:
            self.value += amount


class Gauge(Metric):
    """A number that rises and falls."""

    kind = "gauge"

    def set(self, value: float) -> None:
        with self._lock:
            self.value = value

    def add(self, amount: float = 1) -> None:
        with self._lock:
            self.value += amount


class Histogram(Metric):
    """How observations are distributed."""

    kind = "histogram"
    sum: float = 0
    count: int = 0

    def __init__(self, name: str, about: str, plugin_id: str, buckets: tuple[float, ...]) -> None:
        super().__init__(name, about, plugin_id, buckets)
        self._counts = [0] * (len(buckets) + 1)

    def observe(self, value: float) -> None:
        with self._lock:
            self._counts[bisect_left(self.buckets, value)] += 1
            self.sum += value
            self.count += 1

    def reading(self) -> MetricReading:
        from pegboard.api.metrics_reading import MetricReading  # start-up must be quick

        with self._lock:
            counts, total = tuple(accumulate(self._counts)), self.sum
        return MetricReading(
            self.name, self.kind, self.about, self.plugin_id, total, self.buckets, counts
        )

    def cumulative(self) -> list[int]:
        """By bucket, how many observations are at most its bound; last, how many there are."""
        with self._lock:
            return list(accumulate(self._counts))
