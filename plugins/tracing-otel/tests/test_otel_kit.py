"""The tracer keeps the rules of its surface."""

from __future__ import annotations

from pegboard_testkit.tracer_kit import TracerKit
from pegboard_tracing_otel import pegboard_tracers
from pegboard_tracing_otel.settings import Settings


class TestOtel(TracerKit):
    (tracer,) = pegboard_tracers()
    settings = Settings(timeout=0.2)
    endpoint = "http://127.0.0.1:9"
    options = {"plugin_config": {"tracing-otel": {"timeout": 0.2}}}  # noqa: RUF012
