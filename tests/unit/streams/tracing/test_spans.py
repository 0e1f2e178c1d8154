"""The spans of a response: their times, their order, and whose children they are."""

import os
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest

from schemas.base import Scope
from schemas.endings import EndingCode
from schemas.responses import Terminal
from schemas.usage import UsageEvent
from streams.ids import ResponseIds, parse_response_id
from streams.settings import Settings, SettingsError, TracingSettings
from streams.tracing.context import ROOT, parse_traceparent, span_id_of
from streams.tracing.spans import spans_of_bill, spans_of_gateway
from streams.tracing.tracing import tracing_of
from tests.collector import collecting
from tests.servers import until

IDS = ResponseIds("local", [b"s" * 32])
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{SPAN}-01"
STAGES = {
    "gateway": 0, "admission": 4, "validation": 6, "quota": 7, "pre-safety": 7, "routing": 8, "worker": 18,
    "prefill": 40, "decode": 60, "post-safety": 61,
}  # fmt: skip


def bill(response_id: str, traceparent: str, accepted_ms: int, **fields: Any) -> UsageEvent:
    return UsageEvent.model_validate(
        {
            "response_id": response_id, "scope": Scope(tenant_id="acme", traceparent=traceparent),
            "usage_id": f"{response_id}/0", "choice": 0, "endpoint": "chat.completions", "model": "tiny",
            "requested_model": "default", "pool": "default", "lane": "standard", "worker_id": "worker-1",
            "attempts": 1, "ending": EndingCode.COMPLETED, "finish_reason": "stop", "billable": True,
            "accepted_at_ms": accepted_ms, "first_token_at_ms": accepted_ms + 41, "ended_at_ms": accepted_ms + 61,
            "uncached_input_tokens": 3, "cached_input_tokens": 1, "output_tokens": 2, "reasoning_tokens": 0,
            "released_tokens": 2, "reserved_tokens": 67,
            "stage_ms": {stage: accepted_ms + ms for stage, ms in STAGES.items()}, **fields,
        }
    )  # fmt: skip


def terminal(response_id: str, traceparent: str, ended_ms: int, code: EndingCode = EndingCode.COMPLETED) -> Terminal:
    return Terminal(
        response_id=response_id, scope=Scope(tenant_id="acme", traceparent=traceparent), sequence_number=3, code=code,
        model="tiny", ended_at_ms=ended_ms,
    )  # fmt: skip


def ours(response_id: str) -> str:
    return f"00-{TRACE}-{span_id_of(response_id, ROOT)}-01"


def test_every_stage_is_a_child_of_what_the_records_carry() -> None:
    response_id = IDS.mint(1)
    accepted_ms = parse_response_id(response_id).minted_at_ms or 0
    spans = list(spans_of_bill(bill(response_id, ours(response_id), accepted_ms), 1))
    assert [(span.name, span.service, span.ended_ms - accepted_ms) for span in spans] == [
        ("requests", "sluice-admission", 4), ("validation", "sluice-admission", 6), ("quota", "sluice-admission", 7),
        ("pre-safety", "sluice-admission", 7), ("routing", "sluice-admission", 8), ("lane", "sluice-worker", 18),
        ("prefill", "sluice-worker", 40), ("decode", "sluice-worker", 60), ("post-safety", "sluice-post-safety", 61),
    ]  # fmt: skip
    assert spans[0].begun_ms == accepted_ms
    assert all(later.begun_ms == earlier.ended_ms for earlier, later in pairwise(spans))
    assert {(span.trace_id, span.parent_id) for span in spans} == {(TRACE, span_id_of(response_id, ROOT))}
    assert len({span.span_id for span in spans}) == len(spans)


def test_the_root_is_the_clients_child_and_lasts_until_the_last_byte() -> None:
    response_id = IDS.mint(1)
    begun_ms = parse_response_id(response_id).minted_at_ms or 0
    ended = terminal(response_id, ours(response_id), begun_ms + 61, EndingCode.ENGINE_FAILED)
    stage_ms = {
        "acknowledged": begun_ms + 3,
        "first_sent": begun_ms + 45,
        "ended": begun_ms + 64,
        "sent": begun_ms + 66,
    }
    root, accept, fan_out = spans_of_gateway(ours(response_id), GIVEN, ended, stage_ms, "gateway-1")
    assert (root.parent_id, root.begun_ms, root.ended_ms, root.failure) == (
        SPAN, begun_ms, begun_ms + 66, "engine_failed"
    )  # fmt: skip
    assert (accept.parent_id, accept.ended_ms) == (root.span_id, begun_ms + 3)
    assert (fan_out.parent_id, fan_out.begun_ms, fan_out.ended_ms) == (root.span_id, begun_ms + 61, begun_ms + 66)


@pytest.mark.parametrize("traceparent", ["", "nonsense", f"00-{TRACE}-{SPAN}-00"])
def test_what_is_not_sampled_has_no_spans(traceparent: str) -> None:
    response_id = IDS.mint(1)
    assert not list(spans_of_bill(bill(response_id, traceparent, 1_000), 1))
    assert not list(spans_of_gateway(traceparent, "", terminal(response_id, traceparent, 2_000), {}, "gateway-1"))


def test_a_job_is_its_own_root() -> None:
    response_id = IDS.derive(64, "acme", "intake.batch", "job-1", at_ms=1_000)
    root, *stages = spans_of_bill(bill(response_id, "", 1_000), 1)
    assert (root.name, root.parent_id, root.trace_id) == (ROOT, "", parse_response_id(response_id).unique)
    assert {span.parent_id for span in stages} == {root.span_id}
    assert not list(spans_of_bill(bill(response_id, "", 1_000), 0))


def test_whatever_stands_on_the_log_ends_nothing() -> None:
    assert not list(spans_of_bill(bill("r1", GIVEN, 1_000), 1))
    response_id = IDS.mint(1)
    odd = bill(response_id, GIVEN, 1_000, stage_ms={"validation": -5, "worker": 2**70, "decode": 900})
    assert [span.name for span in spans_of_bill(odd, 1)] == ["decode"]


# On their way


def settings_of(endpoint: str, share: float = 1) -> Settings:
    return Settings(tracing=TracingSettings(otlp_endpoint=endpoint, sample_share=share))


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLUICE_")]:
        monkeypatch.delenv(name)


def test_a_collector_gets_the_spans_of_one_response_once_however_often_they_are_told() -> None:
    response_id = IDS.mint(1)
    begun_ms = parse_response_id(response_id).minted_at_ms or 0
    with collecting() as collector:
        tracing = tracing_of(settings_of(collector.endpoint))
        assert tracing is not None
        carried = tracing.traceparent(response_id, GIVEN)
        tracing.served(carried, GIVEN, terminal(response_id, carried, begun_ms + 61), {"sent": begun_ms + 66}, "g-1")
        for _ in range(2):
            tracing.billed(bill(response_id, carried, begun_ms))
        until(lambda: len(collector.spans()) == 11, "all of them have come")
        tracing.close()
    spans = collector.named(TRACE)
    assert collector.paths == {"/v1/traces"}
    assert spans[ROOT].parent_id == SPAN
    context = parse_traceparent(carried)
    assert context is not None
    assert {span.parent_id for name, span in spans.items() if name != ROOT} == {context.span_id}
    assert (spans["decode"].begun_ms, spans["decode"].ended_ms) == (begun_ms + 40, begun_ms + 60)
    assert spans["decode"].attributes["sluice.output_tokens"] == 2
    assert spans["decode"].attributes["sluice.response_id"] == response_id
    assert spans["lane"].service == "sluice-worker"


def test_a_collector_that_is_away_holds_nobody_up() -> None:
    tracing = tracing_of(settings_of("http://127.0.0.1:1"))
    assert tracing is not None
    response_id = IDS.mint(1)
    carried = tracing.traceparent(response_id, "")
    tracing.billed(bill(response_id, carried, 1_000))
    tracing.close()


def test_where_its_packages_are_not_installed_the_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "streams.tracing.export", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(SettingsError, match="needs the extra `tracing`"):
        tracing_of(settings_of("http://127.0.0.1:4318"))


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_without_a_collector_there_is_no_tracing(share: float) -> None:
    assert tracing_of(settings_of("", share)) is None


def test_where_no_collector_is_named_its_exporter_is_not_loaded() -> None:
    """redis-py loads what it finds of OpenTelemetry; nothing of ours does."""
    code = (
        "import sys; from streams.gateway.__main__ import main; from agents.post_safety.__main__ import run;"
        "from streams.settings import Settings; from streams.tracing.tracing import tracing_of;"
        "tracing_of(Settings()); print([name for name in sys.modules if name.startswith('opentelemetry.exporter')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
