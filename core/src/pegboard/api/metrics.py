"""Numbers that a plugin keeps for operators: counters, gauges and histograms.

A plugin gets its `PluginMetrics` as ``ctx.metrics`` in its hooks and as `metrics` of the object
that a surface hands to its code. It declares a metric by asking for it; the same declaration again
gives the same metric, so that code which is built several times needs no care. All calls may come
from any thread and are quick. Each process counts for itself; whoever exports numbers reads the
board's `MetricSet`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING

from pegboard.api._parts import late_exports
from pegboard.api.metrics_kinds import Counter, Gauge, Histogram, Metric
from pegboard.errors import DuplicateError, PluginError

if TYPE_CHECKING:
    from pegboard.api.metrics_reading import MetricReading

__all__ = [
    "Counter",
    "Gauge",
    "Histogram",
    "Metric",
    "MetricReading",
    "MetricSet",
    "PluginMetrics",
]

if not TYPE_CHECKING:
    __getattr__ = late_exports(__name__, __all__, "metrics_reading")

_NAME = re.compile(r"[a-z][a-z0-9_]*")
PREFIX = "pegboard_plugin"


class MetricSet:
    """All metrics of one board, by name. May be read while they change."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}
        self._lock = Lock()

    def declared(self, metric: Metric) -> Metric:
        """The metric of this declaration: `metric`, or the one that is there already.

        Raises `DuplicateError` if there is another of its name.
        """
        with self._lock:
            found = self._metrics.setdefault(metric.name, metric)
        if found is not metric and not found.like(metric):
            raise DuplicateError(
                f"metric {metric.name} of plugin {metric.plugin_id!r} is taken by a {found.kind} "
                f"of plugin {found.plugin_id!r} ({found.about!r})"
            )
        return found

    def forget(self, plugin_id: str) -> None:
        """Drop the metrics of a plugin that did not load."""
        with self._lock:
            for name in [n for n, m in self._metrics.items() if m.plugin_id == plugin_id]:
                del self._metrics[name]

    def get(self, name: str) -> Metric | None:
        """The metric of this whole name."""
        return self._metrics.get(name)

    def readings(self) -> list[MetricReading]:
        """All of them as they are now, by name."""
        return [metric.reading() for metric in self]

    def __iter__(self) -> Iterator[Metric]:
        """By name."""
        with self._lock:
            listed = sorted(self._metrics.items())
        return (metric for _, metric in listed)

    def __len__(self) -> int:
        return len(self._metrics)


class PluginMetrics:
    """A plugin's namespace. One made without arguments counts for nobody, as tests want it."""

    def __init__(self, plugin_id: str = "", into: MetricSet | None = None) -> None:
        self._plugin_id = plugin_id
        self._into = MetricSet() if into is None else into

    def counter(self, name: str, about: str) -> Counter:
        """A `Counter` called ``pegboard_plugin_<id>_<name>``. Exporters for Prometheus append
        ``_total``, as that format wants it of counters: leave it out of `name`.

        Raises `PluginError` for a name that is not lower case letters, digits and underscores,
        `DuplicateError` if another metric has it.
        """
        made = Counter(self._whole(name), about, self._plugin_id)
        return self._into.declared(made)  # type: ignore[return-value]

    def gauge(self, name: str, about: str) -> Gauge:
        """A `Gauge`; as `counter`."""
        made = Gauge(self._whole(name), about, self._plugin_id)
        return self._into.declared(made)  # type: ignore[return-value]

    def histogram(self, name: str, about: str, buckets: Sequence[float]) -> Histogram:
        """A `Histogram` with these upper bounds, which rise; as `counter`."""
        bounds = tuple(map(float, buckets))
        if not bounds or any(a >= b for a, b in pairwise(bounds)):
            raise PluginError(f"buckets {buckets!r} of histogram {name!r} must rise")
        made = Histogram(self._whole(name), about, self._plugin_id, bounds)
        return self._into.declared(made)  # type: ignore[return-value]

    def _whole(self, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise PluginError(
                f"metric {name!r} is not allowed: lower case letters, digits and underscores, a "
                "letter first"
            )
        return f"{PREFIX}_{re.sub('[^a-z0-9]', '_', self._plugin_id.lower())}_{name}"
