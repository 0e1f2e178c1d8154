"""Spans on their way to a collector of OpenTelemetry, in the background. Imported only where one is named."""

import threading
from collections.abc import Iterable

import requests
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)

from streams.tracing.context import ROOT
from streams.tracing.spans import SpanTimes

QUEUED_SPANS = 8_192
SPANS_PER_REQUEST = 512
EVERY_MS = 1_000
REQUEST_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 3.0
"""What is not exported by then is lost: no process outlives its deadline for it."""
_NS_PER_MS = 1_000_000


class _GivenIds(IdGenerator):
    """The span's own ids, not chance: what is told again is the same span."""

    trace_id = 0
    span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class SpanExport:
    """For one thread. Beyond `QUEUED_SPANS` the oldest are dropped, with a line in the log."""

    def __init__(self, endpoint: str, region: str) -> None:
        session = requests.Session()
        session.trust_env = False  # whom a response is of is nothing for a proxy of the environment
        exporter = OTLPSpanExporter(
            f"{endpoint.rstrip('/')}/v1/traces", timeout=REQUEST_TIMEOUT_S, session=session
        )  # fmt: skip
        self._processor = BatchSpanProcessor(
            exporter, max_queue_size=QUEUED_SPANS, schedule_delay_millis=EVERY_MS,
            max_export_batch_size=SPANS_PER_REQUEST,
        )  # fmt: skip
        self._region = region
        self._ids = _GivenIds()
        self._tracers: dict[str, Tracer] = {}

    def add(self, spans: Iterable[SpanTimes]) -> None:
        for times in spans:
            self._ids.trace_id, self._ids.span_id = int(times.trace_id, 16), int(times.span_id, 16)
            span = self._tracer(times.service).start_span(
                times.name,
                context=self._under(times),
                kind=SpanKind.SERVER if times.name == ROOT else SpanKind.INTERNAL,
                attributes=dict(times.attributes),
                start_time=times.begun_ms * _NS_PER_MS,
            )
            if times.failure:
                span.set_status(Status(StatusCode.ERROR, times.failure))
            span.end(times.ended_ms * _NS_PER_MS)

    def close(self) -> None:
        """Exports what is queued, within `CLOSE_TIMEOUT_S`."""
        closing = threading.Thread(target=self._processor.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_TIMEOUT_S)

    def _tracer(self, service: str) -> Tracer:
        if service not in self._tracers:
            resource = Resource({"service.name": service, "sluice.region": self._region})
            provider = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False, id_generator=self._ids)
            provider.add_span_processor(self._processor)
            self._tracers[service] = provider.get_tracer("sluice")
        return self._tracers[service]

    def _under(self, times: SpanTimes) -> Context:
        if not times.parent_id:
            return Context()
        parent = SpanContext(
            int(times.trace_id, 16), int(times.parent_id, 16), is_remote=True, trace_flags=TraceFlags.get_default()
        )
        return set_span_in_context(NonRecordingSpan(parent), Context())
