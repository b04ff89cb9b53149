"""A collector of our own gets the spans of requests."""

from __future__ import annotations

import asyncio
import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from pegboard import LLM, AsyncLLM, SamplingParams
from pegboard.api.tracer import TracerContext
from pegboard.errors import ConfigError
from pegboard.testing.checkpoints import write_tiny_model
from pegboard_testkit.told import NULL_ENGINE, ended
from pegboard_tracing_otel.settings import Settings
from pegboard_tracing_otel.spans import OtelTracer

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}"


class Collector:
    """Keeps what was sent to it."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []

    def take(self, request: ExportTraceServiceRequest, headers: Any) -> None:
        self.headers.append({str(name).lower(): str(value) for name, value in headers})
        self.requests.append(request)

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


def attributes(span: Any) -> dict[str, Any]:
    """Of a span, as Python values."""
    found = {}
    for pair in span.attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        found[pair.key] = [v.string_value for v in value.values] if kind == "array_value" else value
    return found


@pytest.fixture
def over_grpc() -> Iterator[tuple[str, Collector]]:
    kept = Collector()

    class Servicer(TraceServiceServicer):  # type: ignore[misc]
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
            kept.take(request, context.invocation_metadata())
            return ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(1))
    add_TraceServiceServicer_to_server(Servicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"http://127.0.0.1:{port}", kept
    server.stop(0).wait()


@pytest.fixture
def over_http() -> Iterator[tuple[str, Collector]]:
    kept = Collector()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            kept.take(ExportTraceServiceRequest.FromString(body), self.headers.items())
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1/traces", kept
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = write_tiny_model(tmp_path_factory.mktemp("model"))
    return str(path)


def opened(endpoint: str, **settings: Any) -> OtelTracer:
    return OtelTracer(TracerContext("a/model", endpoint, Settings(**settings)))


def test_the_span_of_a_request_has_vllms_attributes_and_its_parent(over_http: Any) -> None:
    endpoint, kept = over_http
    tracer = opened(endpoint, protocol="http/protobuf", headers={"key": "k"}, service_name="chat")
    headers = {"traceparent": PARENT.format(flags="01"), "tracestate": "a=b"}
    tracer.finished(ended(trace_headers=headers))
    tracer.finished(ended("failed", reasons=("error",), generated=(0,), decode=None, prefill=None))
    tracer.close()
    good, bad = kept.spans
    assert good.name == "llm_request" and good.kind == good.SPAN_KIND_SERVER
    assert good.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert good.parent_span_id.hex() == "b7ad6b7169203331" and good.trace_state == "a=b"
    assert (good.start_time_unix_nano, good.end_time_unix_nano) == (1000500000000, 1002500000000)
    assert attributes(good) == {
        "gen_ai.request.id": "r",
        "gen_ai.request.n": 2,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.75,
        "gen_ai.response.model": "a/model",
        "gen_ai.response.finish_reasons": ["stop", "length"],
        "gen_ai.usage.prompt_tokens": 7,
        "gen_ai.usage.completion_tokens": 5,
        "gen_ai.usage.cached_tokens": 4,
        "gen_ai.usage.num_sequences": 2,
        "gen_ai.latency.e2e": 2.0,
        "gen_ai.latency.time_to_first_token": 0.5,
        "gen_ai.latency.time_in_queue": 0.125,
        "gen_ai.latency.time_in_model_prefill": 0.25,
        "gen_ai.latency.time_in_model_decode": 1.0,
        "gen_ai.latency.time_in_model_inference": 1.25,
    }
    assert bad.parent_span_id == b"" and bad.status.code == bad.status.STATUS_CODE_ERROR
    assert "gen_ai.latency.time_in_model_decode" not in attributes(bad)
    assert kept.headers[0]["key"] == "k"
    resource = kept.requests[0].resource_spans[0].resource.attributes
    assert {pair.key: pair.value.string_value for pair in resource}["service.name"] == "chat"


def test_an_engine_that_serves_sends_a_span_for_each_request(
    model: str, over_grpc: tuple[str, Collector]
) -> None:
    endpoint, kept = over_grpc
    llm = AsyncLLM(model, **NULL_ENGINE, otlp_traces_endpoint=endpoint)
    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)

    async def ask(name: str, **more: Any) -> None:
        async for _ in llm.generate([5, 6, 7], params, name, **more):
            pass

    async def all_of_them() -> None:
        headers = {"traceparent": PARENT.format(flags="01")}
        await asyncio.gather(ask("child", trace_headers=headers), ask("root"))

    asyncio.run(all_of_them())
    used = {row["id"]: row["used"] for row in llm.plugins()}
    llm.close()
    assert used["tracing-otel"] == ["tracer:otel"]
    spans = {attributes(span)["gen_ai.request.id"]: span for span in kept.spans}
    assert len(kept.spans) == 2 and set(spans) == {"child", "root"}
    assert spans["child"].parent_span_id.hex() == "b7ad6b7169203331"
    assert spans["root"].parent_span_id == b""
    found = attributes(spans["root"])
    assert found["gen_ai.usage.prompt_tokens"] == 3
    assert found["gen_ai.usage.completion_tokens"] == 5
    parts = ("time_in_queue", "time_in_model_prefill", "time_in_model_decode")
    whole = sum(found[f"gen_ai.latency.{part}"] for part in parts)
    assert 0 < whole <= found["gen_ai.latency.e2e"] + 0.002


def test_what_is_not_sampled_is_not_sent(over_http: Any) -> None:
    endpoint, kept = over_http
    tracer = opened(endpoint, protocol="http/protobuf", sample_ratio=0.0)
    for name, flags in (("no parent", None), ("silent", "00"), ("loud", "01")):
        headers = {} if flags is None else {"traceparent": PARENT.format(flags=flags)}
        tracer.finished(ended(name, trace_headers=headers))
    tracer.close()
    assert [attributes(span)["gen_ai.request.id"] for span in kept.spans] == ["loud"]


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_collector_that_is_away_holds_nobody_up(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pegboard_tracing_otel.spans._LAST_WORDS", 0.3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and never listens
        tracer = opened(f"http://127.0.0.1:{taken.getsockname()[1]}", protocol=protocol)
        started = time.monotonic()
        for number in range(3000):
            tracer.finished(ended(str(number)))
        assert time.monotonic() - started < 5
        started = time.monotonic()
        tracer.close()
        assert time.monotonic() - started < 1.5


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"protocol": "carrier pigeon"}, "protocol='carrier pigeon'.*grpc or http/protobuf"),
        ({"sample_ratio": 1.5}, "sample_ratio=1.5.*from 0 to 1"),
        ({"timeout": 0.0}, "timeout=0.0.*above 0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Settings(**settings)


def test_without_an_endpoint_there_is_nobody_to_send_to(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build: Callable[..., LLM] = LLM
    for name in ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="'otel' needs otlp_traces_endpoint"):
        build(model, **NULL_ENGINE, tracer="otel")
