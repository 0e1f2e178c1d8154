"""Which trace a response belongs to, and whether it has spans."""

import pytest

from streams.ids import ResponseIds, parse_response_id
from streams.tracing.context import ROOT, TraceContext, context_of, is_chosen, parse_traceparent, span_id_of

IDS = ResponseIds("local", [b"s" * 32])
RESPONSE = IDS.mint(3)
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    "text",
    [
        "", "nonsense", f"00-{TRACE}-{SPAN}", f"00-{TRACE.upper()}-{SPAN}-01", f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE}-{SPAN}-01\n",
    ],
)  # fmt: skip
def test_what_is_no_context_is_none(text: str) -> None:
    assert parse_traceparent(text) is None


@pytest.mark.parametrize(("flags", "sampled"), [("00", False), ("01", True), ("03", True), ("02", False)])
def test_a_context_is_read(flags: str, sampled: bool) -> None:
    assert parse_traceparent(f"00-{TRACE}-{SPAN}-{flags}") == TraceContext(TRACE, SPAN, sampled)


def test_a_clients_trace_goes_on_under_a_span_of_ours() -> None:
    context = context_of(RESPONSE, TraceContext(TRACE, SPAN, True), 1)
    assert str(context) == f"00-{TRACE}-{span_id_of(RESPONSE, ROOT)}-01"


def test_without_a_context_the_trace_has_the_ids_digits() -> None:
    context = context_of(RESPONSE, None, 1)
    assert context is not None
    assert (context.trace_id, context.sampled) == (parse_response_id(RESPONSE).unique, True)


def test_who_wants_no_spans_has_none_and_keeps_its_context() -> None:
    unwanted = TraceContext(TRACE, SPAN, False)
    assert context_of(RESPONSE, unwanted, 1) == unwanted
    assert context_of(RESPONSE, TraceContext(TRACE, SPAN, True), 0) == unwanted
    assert context_of(RESPONSE, None, 0) is None


def test_the_share_is_kept_whatever_clients_send() -> None:
    ids = [IDS.mint(1) for _ in range(4_000)]
    chosen = [each for each in ids if is_chosen(each, 0.25)]
    assert 800 < len(chosen) < 1_200
    given = TraceContext(TRACE, SPAN, True)
    assert [each for each in ids if (found := context_of(each, given, 0.25)) and found.sampled] == chosen
