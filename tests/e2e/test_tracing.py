"""The spans of one request through every process, as a collector gets them."""

import uuid
from collections.abc import Iterator

import pytest

from deploy.local.runner import Stack
from streams.tracing.context import ROOT
from tests.collector import Collector, collecting
from tests.e2e.records import job, result, signature, submit
from tests.e2e.stacks import TIMEOUT_S, body, http_client, prepared
from tests.servers import until

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(240)]

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
IN_ORDER = ("requests", "validation", "quota", "pre-safety", "routing", "lane", "prefill", "decode", "post-safety")
SERVICES = {"sluice-gateway", "sluice-admission", "sluice-worker", "sluice-post-safety"}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Stack]:
    environment = {"SLUICE_TRACING__OTLP_ENDPOINT": collector.endpoint}
    with prepared(tmp_path_factory.mktemp("traced"), environment=environment, seed=13) as stack:
        yield stack


def test_a_clients_trace_has_a_span_of_every_stage(traced: Stack, collector: Collector) -> None:
    with http_client(traced) as client:
        question = body("A secret question.", stream=True, max_tokens=8)
        headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
        answer = client.post("/v1/chat/completions", json=question, headers=headers)
    until(lambda: collector.named(TRACE).keys() >= {ROOT, "accept", "fan-out", *IN_ORDER}, "all have come", TIMEOUT_S)
    spans = collector.named(TRACE)
    root = spans.pop(ROOT)
    assert (root.parent_id, answer.headers["traceparent"]) == (SPAN, f"00-{TRACE}-{root.span_id}-01")
    assert {span.parent_id for span in spans.values()} == {root.span_id}
    assert {span.service for span in spans.values()} == SERVICES
    begun = [spans[name].begun_ms for name in IN_ORDER]
    assert begun == sorted(begun)
    assert root.begun_ms <= begun[0]
    assert spans["fan-out"].ended_ms == root.ended_ms
    assert spans["decode"].attributes["sluice.output_tokens"] == 8
    assert not any(b"secret question" in told for told in collector.bodies)


def test_a_job_has_a_trace_of_its_own(traced: Stack, collector: Collector) -> None:
    custom_id, value = f"job-{uuid.uuid4().hex}", job(max_tokens=4)
    submit(traced, custom_id, value, signature(traced, custom_id, value))
    trace_id = result(traced, custom_id)["id"][-32:]
    until(lambda: collector.named(trace_id).keys() >= {ROOT, "intake", "decode"}, "its spans have come", TIMEOUT_S)
    spans = collector.named(trace_id)
    assert spans[ROOT].parent_id == ""
    assert {span.parent_id for name, span in spans.items() if name != ROOT} == {spans[ROOT].span_id}
