"""A client's trace context goes through the gateway, with spans or without."""

import asyncio

from schemas.endings import EndingCode
from streams.settings import Settings, TracingSettings
from streams.tracing.context import ROOT, parse_traceparent
from streams.tracing.tracing import tracing_of
from tests.collector import collecting
from tests.unit.streams.gateway.gateway_stack import Stack, memory_log, serving, until
from tests.unit.streams.gateway.http_clients import HELLO, client

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{SPAN}-01"
REFUSED = EndingCode.PROMPT_REFUSED


async def asked(stack: Stack, **headers: str) -> tuple[str | None, str]:
    """The trace context that came back, and the one that the request's record carries."""
    async with client(stack, **headers) as http:
        answering = asyncio.ensure_future(stack.pipeline.answer(["a", "b"]))
        answer = await http.post("/v1/chat/completions", json={**HELLO, "stream": True})
    return answer.headers.get("traceparent"), (await answering).scope.traceparent


async def test_without_spans_a_clients_context_is_carried_as_it_is_and_comes_back(stack: Stack) -> None:
    assert await asked(stack, traceparent=GIVEN) == (GIVEN, GIVEN)
    assert await asked(stack) == (None, "")
    assert await asked(stack, traceparent="nonsense") == (None, "")


async def test_the_gateways_spans_are_children_of_the_clients(settings: Settings) -> None:
    with collecting() as collector:
        options = settings.model_copy(update={"tracing": TracingSettings(otlp_endpoint=collector.endpoint)})
        tracing = tracing_of(options)
        async with serving(options, memory_log(options), tracing=tracing) as stack:
            back, carried = await asked(stack, traceparent=GIVEN)
            nothing, own = await asked(stack)
            await until(lambda: len(collector.spans()) == 6, "the spans of both have come")
    context = parse_traceparent(carried)
    assert back == carried
    assert context is not None
    spans = collector.named(TRACE)
    assert (spans[ROOT].parent_id, spans[ROOT].span_id) == (SPAN, context.span_id)
    assert {spans["accept"].parent_id, spans["fan-out"].parent_id} == {context.span_id}
    assert spans[ROOT].begun_ms <= spans["accept"].ended_ms <= spans["fan-out"].ended_ms == spans[ROOT].ended_ms
    assert nothing is None, "a client that sent no context is told none"
    own_context = parse_traceparent(own)
    assert own_context is not None
    assert collector.named(own_context.trace_id)[ROOT].parent_id == ""


async def test_a_refusal_is_an_error_of_its_root(settings: Settings) -> None:
    with collecting() as collector:
        options = settings.model_copy(update={"tracing": TracingSettings(otlp_endpoint=collector.endpoint)})
        async with serving(options, memory_log(options), tracing=tracing_of(options)) as stack:
            async with client(stack, traceparent=GIVEN) as http:
                answering = asyncio.ensure_future(http.post("/v1/chat/completions", json=HELLO))
                stack.pipeline.end(await stack.pipeline.next_request(), 1, REFUSED)
                answer = await answering
            await until(lambda: len(collector.spans()) == 3, "its spans have come")
    root = collector.named(TRACE)[ROOT]
    assert answer.headers["traceparent"] == f"00-{TRACE}-{root.span_id}-01"
    assert (root.is_error, root.attributes["sluice.code"]) == (True, REFUSED.value)
