"""The tracer ``otel``."""

from __future__ import annotations

import os
import threading

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pegboard.api.stat_logger_front import RequestFacts
from pegboard.api.tracer import TracerContext
from pegboard.errors import ConfigError
from pegboard_tracing_otel.attributes import attributes_of
from pegboard_tracing_otel.settings import Settings

__all__ = ["SPAN", "OtelTracer"]

SPAN = "llm_request"
"""Name of the span of a request."""
_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_LAST_WORDS = 2.0
"""Seconds that the last spans get to leave."""
_NANO = 1_000_000_000


class OtelTracer:
    """Makes a span when a request has ended. A thread of the library sends them, in batches; it
    keeps at most 2048, and drops what comes while it has so many."""

    def __init__(self, ctx: TracerContext) -> None:
        settings: Settings = ctx.settings or Settings()
        self._model = ctx.model
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)),
            resource=Resource.create({SERVICE_NAME: settings.service_name}),
            shutdown_on_exit=False,
        )
        exporter = _exporter(ctx.endpoint, settings)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("pegboard")
        self._propagator = TraceContextTextMapPropagator()

    def finished(self, facts: RequestFacts) -> None:
        """Begin a span in the past and end it."""
        begin = int(facts.arrival * _NANO)
        span = self._tracer.start_span(
            SPAN,
            self._propagator.extract(dict(facts.trace_headers)),
            kind=SpanKind.SERVER,
            start_time=begin,
        )
        if span.is_recording():
            span.set_attributes(attributes_of(facts, self._model))
            if facts.reason == "error":
                span.set_status(Status(StatusCode.ERROR))
        span.end(begin + int(facts.seconds * _NANO))

    def close(self) -> None:
        """Send what is left; what the collector does not take in time is lost."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(_LAST_WORDS)


def _exporter(endpoint: str | None, settings: Settings) -> SpanExporter:
    """The one of the protocol. Raises `ConfigError` without an endpoint."""
    if endpoint is None and not any(os.environ.get(name) for name in _VARIABLES):
        raise ConfigError(
            "the tracer 'otel' needs otlp_traces_endpoint, the URL of a collector, such as "
            "http://127.0.0.1:4317"
        )
    headers = dict(settings.headers) or None
    if settings.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
            OTLPSpanExporter as GrpcExporter,
        )

        return GrpcExporter(endpoint=endpoint, headers=headers, timeout=settings.timeout)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
        OTLPSpanExporter as HttpExporter,
    )

    return HttpExporter(endpoint=endpoint, headers=headers, timeout=settings.timeout)
