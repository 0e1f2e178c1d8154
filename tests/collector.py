"""A collector of OpenTelemetry on loopback: takes OTLP over HTTP, and keeps what it was told."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Told:
    """A span as it arrived; ids in hexadecimal, times in milliseconds."""

    name: str
    service: str
    trace_id: str
    span_id: str
    parent_id: str
    begun_ms: int
    ended_ms: int
    is_error: bool
    attributes: dict[str, Any] = field(compare=False)


@dataclass
class Collector:
    endpoint: str
    bodies: list[bytes] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)

    def received(self) -> list[Told]:
        """All that came, as often as it came."""
        return [span for body in list(self.bodies) for span in _spans_of(body)]

    def spans(self) -> dict[str, Told]:
        """By id: what comes twice is one."""
        return {span.span_id: span for span in self.received()}

    def named(self, trace_id: str) -> dict[str, Told]:
        """Those of a trace, by name."""
        return {span.name: span for span in self.spans().values() if span.trace_id == trace_id}


def _spans_of(body: bytes) -> Iterator[Told]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        about = {each.key: each.value.string_value for each in resource.resource.attributes}
        for span in (span for scope in resource.scope_spans for span in scope.spans):
            yield Told(
                span.name, about["service.name"], span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(),
                span.start_time_unix_nano // 1_000_000, span.end_time_unix_nano // 1_000_000, span.status.code == 2,
                {each.key: each.value.string_value or each.value.int_value for each in span.attributes},
            )  # fmt: skip


@contextmanager
def collecting() -> Iterator[Collector]:
    """Until the block ends, on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.paths.add(self.path)
            collector.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join(timeout=10)
