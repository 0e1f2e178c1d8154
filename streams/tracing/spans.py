"""The spans of a response, made from the times that its records carry. Pure; nothing here holds a text."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from schemas.endings import ENDINGS, EndingCode
from schemas.responses import Terminal
from schemas.usage import UsageEvent
from streams.ids import is_response_id, parse_response_id
from streams.tracing.context import ROOT, TraceContext, context_of, parse_traceparent, span_id_of

Attributes = Mapping[str, str | int]
MAX_UNIX_MS = 2**43
"""Of what a span can say in nanoseconds, and far beyond any deadline."""
GATEWAY, ADMISSION, WORKER, POST_SAFETY = "sluice-gateway", "sluice-admission", "sluice-worker", "sluice-post-safety"
STAGES = (
    ("intake", ADMISSION, "intake"),
    ("admission", ADMISSION, "requests"),
    ("validation", ADMISSION, "validation"),
    ("quota", ADMISSION, "quota"),
    ("pre-safety", ADMISSION, "pre-safety"),
    ("routing", ADMISSION, "routing"),
    ("worker", WORKER, "lane"),
    ("prefill", WORKER, "prefill"),
    ("decode", WORKER, "decode"),
    ("post-safety", POST_SAFETY, "post-safety"),
)
"""Of `stage_ms`, in their order: whose span it is, and its name. Each lasts from where the one before ended; `requests`
and `lane` are the time in these topics."""


@dataclass(frozen=True, slots=True)
class SpanTimes:
    """A span that is over. Without `parent_id` it is the root of its trace."""

    name: str
    service: str
    trace_id: str
    span_id: str
    parent_id: str
    begun_ms: int
    ended_ms: int
    attributes: Attributes
    failure: str = ""
    """The code, where it ended in an error."""


def spans_of_bill(event: UsageEvent, share: float) -> Iterator[SpanTimes]:
    """What happened between acceptance and ending, as children of what the records carry.

    A job has no gateway: its root is told here, if it is of the `share` that is traced.
    """
    # Whatever stands on the log, a span is worth no process.
    if event.choice or not is_response_id(event.response_id):
        return
    response_id = event.response_id
    context = parse_traceparent(event.scope.traceparent)
    about: dict[str, str | int] = {
        "sluice.response_id": response_id, "sluice.tenant": event.scope.tenant_id, "sluice.model": event.model,
        "sluice.pool": event.pool, "sluice.lane": event.lane, "sluice.code": event.ending.value,
    }  # fmt: skip
    if context is None and parse_response_id(response_id).minted_at_ms is None:
        context = context_of(response_id, None, share)
        if context is not None:
            yield _root(context, "", event.ending, POST_SAFETY, event.accepted_at_ms, event.ended_at_ms, about)
    if context is None or not context.sampled:
        return
    before_ms = event.accepted_at_ms
    for stage, service, name in STAGES:
        at_ms = event.stage_ms.get(stage)
        if at_ms is None or not 0 <= at_ms <= MAX_UNIX_MS:
            continue
        more: dict[str, str | int] = {}
        if service == WORKER:
            more = {"sluice.worker": event.worker_id, "sluice.attempts": event.attempts}
        if stage == "prefill":
            more["sluice.input_tokens"] = event.uncached_input_tokens + event.cached_input_tokens
            more["sluice.cached_input_tokens"] = event.cached_input_tokens
        if stage == "decode":
            more["sluice.output_tokens"] = event.output_tokens + event.reasoning_tokens
        yield _child(context, response_id, name, service, min(before_ms, at_ms), at_ms, {**about, **more})
        before_ms = at_ms


def spans_of_gateway(
    traceparent: str, given: str, terminal: Terminal, stage_ms: Mapping[str, int], gateway_id: str
) -> Iterator[SpanTimes]:
    """The root, from acceptance to when the last viewer had all of it, and what of that the gateway did.

    `given` is the client's own context. A viewer that went to another gateway is not waited for.
    """
    response_id = terminal.response_id
    context, parent = parse_traceparent(traceparent), parse_traceparent(given)
    begun_ms = parse_response_id(response_id).minted_at_ms
    if context is None or not context.sampled or begun_ms is None or context.span_id != span_id_of(response_id, ROOT):
        return
    about: dict[str, str | int] = {
        "sluice.response_id": response_id, "sluice.tenant": terminal.scope.tenant_id, "sluice.model": terminal.model,
        "sluice.code": terminal.code.value, "sluice.gateway": gateway_id,
    }  # fmt: skip
    sent_ms = max(stage_ms.get("sent", 0), stage_ms.get("ended", 0), terminal.ended_at_ms)
    yield _root(context, parent.span_id if parent else "", terminal.code, GATEWAY, begun_ms, sent_ms, about)
    if (acknowledged_ms := stage_ms.get("acknowledged")) is not None:
        yield _child(context, response_id, "accept", GATEWAY, begun_ms, acknowledged_ms, about)
    yield _child(context, response_id, "fan-out", GATEWAY, terminal.ended_at_ms, sent_ms, about)


def _root(
    context: TraceContext, parent_id: str, code: EndingCode, service: str, begun_ms: int, ended_ms: int,
    about: Attributes,
) -> SpanTimes:  # fmt: skip
    failure = code.value if ENDINGS[code].is_error else ""
    return SpanTimes(
        ROOT, service, context.trace_id, context.span_id, parent_id, begun_ms, ended_ms, about, failure=failure
    )


def _child(
    context: TraceContext, response_id: str, name: str, service: str, begun_ms: int, ended_ms: int, about: Attributes
) -> SpanTimes:
    span_id = span_id_of(response_id, name)
    return SpanTimes(name, service, context.trace_id, span_id, context.span_id, begun_ms, ended_ms, about)
