"""A span for each request of Pegboard, over OpenTelemetry's protocol."""

from __future__ import annotations

from pegboard.api.hooks import hookimpl
from pegboard.api.tracer import Tracer
from pegboard_tracing_otel.settings import Settings

PEGBOARD_API = {"tracer": 0}
PEGBOARD_PROCESSES = ("front",)


@hookimpl
def pegboard_settings() -> type[Settings]:
    """The keys of ``plugin_config={"tracing-otel": …}``."""
    return Settings


@hookimpl
def pegboard_tracers() -> tuple[Tracer, ...]:
    """The tracer ``otel``."""
    return (Tracer(name="otel", open="pegboard_tracing_otel.spans:OtelTracer"),)
