"""What plugins count, as the client library wants it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from pegboard.api.metrics import MetricReading

__all__ = ["PluginFigures"]

_LABELS = ["plugin", "process"]


class PluginFigures(Collector):
    """Readings of several processes, for one answer."""

    def __init__(self, readings: Mapping[str, Sequence[MetricReading]]) -> None:
        """By process; the name of one is the label ``process``."""
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        """One family for each metric, whatever processes have it."""
        families: dict[str, Metric] = {}
        for process, readings in self._readings.items():
            for reading in readings:
                family = families.get(reading.name)
                if family is None:
                    family = families[reading.name] = _family(reading)
                _add(family, reading, [reading.plugin_id, process])
        yield from families.values()


def _family(reading: MetricReading) -> Metric:
    kinds = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    made: Metric = kinds[reading.kind](reading.name, reading.about, labels=_LABELS)
    return made


def _add(family: Metric, reading: MetricReading, labels: list[str]) -> None:
    if isinstance(family, HistogramMetricFamily):
        bounds = [*map(repr, reading.buckets), "+Inf"]
        buckets = list(zip(bounds, reading.cumulative, strict=True))
        family.add_metric(labels, buckets, reading.value)
    else:
        assert isinstance(family, (CounterMetricFamily, GaugeMetricFamily))
        family.add_metric(labels, reading.value)
