"""What a server counts of HTTP requests, as the client library wants it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

__all__ = ["HttpRequests"]


class HttpRequests(Collector):
    """Metrics of a server that has a tally of requests."""

    def __init__(self, tally: Any) -> None:
        """`tally.figures()` gives objects with ``name``, ``kind``, ``about``, ``labels`` and
        ``rows``; a row is the values of the labels, a number, and pairs of a name and a count."""
        self._tally = tally

    def collect(self) -> Iterator[Metric]:
        """One family for each."""
        for figure in self._tally.figures():
            yield _family(figure)


def _family(figure: Any) -> Metric:
    labels = list(figure.labels)
    if figure.kind == "counter":
        counter = CounterMetricFamily(figure.name, figure.about, labels=labels)
        for values, count, _ in figure.rows:
            counter.add_metric(values, count)
        return counter
    if figure.kind == "summary":
        summary = SummaryMetricFamily(figure.name, figure.about, labels=labels)
        for values, total, [(_, count)] in figure.rows:
            summary.add_metric(values, count, total)
        return summary
    histogram = HistogramMetricFamily(figure.name, figure.about, labels=labels)
    for values, total, buckets in figure.rows:
        histogram.add_metric(values, buckets, total)
    return histogram
