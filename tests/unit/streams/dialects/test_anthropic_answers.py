"""Answers as Anthropic's own types have them, whole and in events, however their rows are cut, grouped and resumed."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from schemas.endings import ENDINGS, EndingCode
from schemas.generated import Kind
from schemas.responses import TokenUsage
from streams.dialects.anthropic.error import endless_message, error_object, error_type, overflow_message
from streams.dialects.anthropic.events import Event, EventWriter
from streams.dialects.anthropic.message import message_object
from streams.dialects.tool_calls import call_id
from streams.gateway.fan_out.spans import Span, join_runs

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
R = "resp_local-0_ab"
USAGE = TokenUsage(prompt_tokens=9, cached_tokens=4, completion_tokens=7, reasoning_tokens=2)
_Kind = TypeVar("_Kind", bound=BaseModel)


class Piece(NamedTuple):
    """A token's row, before it has a number."""

    kind: Kind
    text: str
    call: int = 0


def spans_of(pieces: Sequence[Piece]) -> list[Span]:
    return [Span(n, n, 0, p.kind, p.text, [len(p.text)], 0, p.call) for n, p in enumerate(pieces, 1)]


WHOLE = [
    Piece("reasoning", "Let me"), Piece("reasoning", " see."), Piece("content", ""), Piece("content", "I lo"),
    Piece("content", "ok."), Piece("tool_name", "wea"), Piece("tool_name", "ther"), Piece("tool_arguments", '{"place"'),
    Piece("tool_arguments", ': "Paris"}'), Piece("tool_name", "noon", 1), Piece("tool_name", "ish", 2),
    Piece("tool_arguments", "{", 2), Piece("content", "Done \u2028\n"),
]  # fmt: skip


def extras(value: object) -> set[str]:
    """Names of fields that the package's types do not have, wherever they stand."""
    if isinstance(value, BaseModel):
        return set(value.model_extra or ()).union(*(extras(each) for _, each in value))
    return set().union(*map(extras, value)) if isinstance(value, list) else set()


def whole(pieces: Sequence[Piece], code: EndingCode = EndingCode.COMPLETED, *reasons: str) -> dict[str, Any]:
    return message_object(
        response_id=R, model="tiny", rows=spans_of(pieces), code=code, finish_reasons=reasons, usage=USAGE
    )


def told(writer: EventWriter, spans: Iterable[Span]) -> list[Event]:
    return [event for span in spans for event in writer.row(span, span.first_sequence, span.sequence_number)]


def stream_of(spans: Sequence[Span], code: EndingCode = EndingCode.COMPLETED, *reasons: str) -> list[Event]:
    writer = EventWriter(R)
    end = 1 + (spans[-1].sequence_number if spans else 0)
    return [writer.start("tiny", 9), *told(writer, spans), *writer.end(code, reasons, USAGE, end)]


def accumulated(events: Iterable[Event]) -> dict[str, Any]:
    """As a client does that keeps to the protocol, which this holds: one block is open at a time, in order."""
    message: dict[str, Any] = {}
    is_open = False
    for name, data, number in events:
        event = json.loads(data)
        assert (event["type"], event["sequence_number"]) == (name.decode(), number)
        match event["type"]:
            case "message_start":
                assert not message
                message = event["message"]
            case "content_block_start":
                assert not is_open
                is_open = True
                assert event["index"] == len(message["content"])
                message["content"].append({**event["content_block"], "json": ""})
            case "content_block_delta":
                assert is_open
                assert event["index"] == len(message["content"]) - 1
                block, delta = message["content"][-1], event["delta"]
                assert delta.pop("type").removesuffix("_delta") in (block["type"], "input_json")
                for field, text in delta.items():
                    block[field.replace("partial_", "")] += text
            case "content_block_stop":
                assert is_open
                assert event["index"] == len(message["content"]) - 1
                is_open = False
            case "message_delta":
                message |= event["delta"]
                message["usage"] |= event["usage"]
            case "message_stop":
                assert not is_open
    return message


def test_a_whole_answer_has_anthropics_shape() -> None:
    answer = whole(WHOLE, EndingCode.COMPLETED, "stop")
    message = Message.model_validate(answer, strict=True)
    assert extras(message) == {"input_text"}, "the one extension: of a call whose arguments are no JSON object"
    assert answer == {
        "id": R,
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [
            {"type": "thinking", "thinking": "Let me see.", "signature": ""},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": call_id(R, 0, 0), "name": "weather", "input": {"place": "Paris"}},
            {"type": "tool_use", "id": call_id(R, 0, 1), "name": "noon", "input": {}},
            {"type": "tool_use", "id": call_id(R, 0, 2), "name": "ish", "input": {}, "input_text": "{"},
            {"type": "text", "text": "Done \u2028\n"},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "stop_details": None,
        "usage": {
            "input_tokens": 5,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 4,
            "output_tokens": 7,
            "output_tokens_details": {"thinking_tokens": 2},
        },
    }


@pytest.mark.parametrize("arguments", ["[1]", "x", '{"a": NaN}', '{"a": 1e999}', '{"a": "\\ud800"}', "[" * 5_000, "1"])
def test_arguments_that_are_no_json_object_are_told_as_they_are(arguments: str) -> None:
    answer = whole([Piece("tool_name", "x"), Piece("tool_arguments", arguments)])
    assert answer["content"][0]["input"] == {}
    assert answer["content"][0]["input_text"] == arguments
    json.dumps(answer, allow_nan=False).encode()


def test_an_answer_without_a_word_has_no_content() -> None:
    assert whole([])["content"] == []
    assert accumulated(stream_of([]))["content"] == []


def test_events_have_anthropics_shape_and_our_number() -> None:
    events = stream_of(spans_of(WHOLE), EndingCode.COMPLETED, "stop")
    for name, data, number in events:
        event = EVENT.validate_json(data, strict=True)
        assert (event.type, extras(event)) == (name.decode(), {"sequence_number"})
        assert event.sequence_number == number
    numbers = [number for _, _, number in events]
    assert numbers == sorted(numbers)
    assert (numbers[0], numbers[-1]) == (0, len(WHOLE) + 1)
    assert json.loads(events[0][1])["message"]["usage"]["input_tokens"] == 9
    assert json.loads(events[-2][1])["usage"]["input_tokens"] == 5


def test_a_delta_is_short_and_exact() -> None:
    [_, (_, data, _)] = told(EventWriter(R), spans_of([Piece("content", 'a "quote"')]))
    assert json.loads(data) == {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": 'a "quote"'},
        "sequence_number": 1,
    }


def test_the_start_of_a_call_has_its_whole_name() -> None:
    events = told(EventWriter(R), spans_of([Piece("tool_name", "wea"), Piece("tool_name", "ther")]))
    assert events == [], "its name may go on"
    stream = accumulated(stream_of(spans_of([Piece("tool_name", "wea"), Piece("tool_name", "ther")])))
    assert stream["content"] == [{**whole([Piece("tool_name", "weather")])["content"][0], "json": ""}]


@pytest.mark.parametrize(
    ("code", "reason", "calls", "expected"),
    [
        (EndingCode.COMPLETED, "stop", False, "end_turn"),
        (EndingCode.COMPLETED, "stop", True, "tool_use"),
        (EndingCode.COMPLETED, "tool_calls", False, "tool_use"),
        (EndingCode.COMPLETED, "length", False, "max_tokens"),
        (EndingCode.COMPLETED, "length", True, "max_tokens"),
        (EndingCode.SAFETY_HALTED, "", False, "refusal"),
        (EndingCode.SAFETY_HALTED, "content_filter", True, "refusal"),
    ],
)
def test_why_it_stopped_is_said_in_anthropics_words(code: EndingCode, reason: str, calls: bool, expected: str) -> None:
    pieces = [Piece("tool_name", "x")] if calls else [Piece("content", "x")]
    answer = whole(pieces, code, reason)
    message = Message.model_validate(answer, strict=True)
    assert message.stop_reason == expected
    assert (message.stop_details is not None) is (expected == "refusal")
    told_at_end = accumulated(stream_of(spans_of(pieces), code, reason))
    assert {name: told_at_end[name] for name in ("stop_reason", "stop_details", "usage")} == {
        name: answer[name] for name in ("stop_reason", "stop_details", "usage")
    }


_TEXT = st.text('ab{}":1é🙂 ', max_size=3)
_KINDS = st.sampled_from(["content", "reasoning", "call"])
_RUNS = st.lists(st.tuples(_KINDS, st.lists(_TEXT, max_size=4), st.lists(_TEXT, max_size=3)), max_size=6)


@st.composite
def answers(draw: st.DrawFn) -> list[Piece]:
    """Texts, thoughts and calls in any order; the rows of a call stand together, its name first."""
    pieces: list[Piece] = []
    call = 0
    for kind, texts, names in draw(_RUNS):
        if kind == "call":
            pieces += [Piece("tool_name", name, call) for name in ["n", *names]]
            pieces += [Piece("tool_arguments", text, call) for text in texts]
            call += 1
        else:
            pieces += [Piece("content" if kind == "content" else "reasoning", text) for text in texts]
    return pieces


def regrouped(draw: st.DrawFn, spans: list[Span]) -> list[Span]:
    """Joined where that may be, then cut after some of the tokens."""
    cut: list[Span] = []
    for span in join_runs(spans, max_chars=draw(st.integers(1, 9))):
        rest: Span | None = span
        for after in sorted(draw(st.sets(st.integers(span.first_sequence, span.sequence_number), max_size=3))):
            if rest is not None and (behind := rest.after(after)) is not None:
                ends = rest.text_ends[: behind.first_sequence - rest.first_sequence]
                cut.append(rest._replace(sequence_number=after, text=rest.text[: ends[-1]], text_ends=list(ends)))
                rest = behind
        if rest is not None:
            cut.append(rest)
    return cut


@given(data=st.data(), pieces=answers())
def test_however_rows_are_cut_and_grouped_the_blocks_are_the_same(data: st.DataObject, pieces: list[Piece]) -> None:
    @st.composite
    def groupings(draw: st.DrawFn) -> list[Span]:
        return regrouped(draw, spans_of(pieces))

    one, other = accumulated(stream_of(spans_of(pieces))), accumulated(stream_of(data.draw(groupings())))
    assert one == other
    answer = whole(pieces)
    assert {name: one[name] for name in answer if name != "content"} == {
        name: answer[name] for name in answer if name != "content"
    }
    for block, streamed in zip(answer["content"], one["content"], strict=True):
        text = block.pop("input_text", None)
        arguments = streamed.pop("json")
        if text is None and arguments:
            streamed["input"] = json.loads(arguments)
        assert text in (None, arguments)
        assert streamed == block


@given(data=st.data(), pieces=answers())
def test_a_continuation_that_is_seeded_is_the_rest(data: st.DataObject, pieces: list[Piece]) -> None:
    spans = spans_of(pieces)
    after = data.draw(st.integers(0, len(spans)))
    everything = stream_of(spans)
    before = EventWriter(R)
    first = [before.start("tiny", 9), *told(before, spans[:after])]
    resumed = EventWriter(R)
    for span in join_runs(spans[:after]) if data.draw(st.booleans()) else spans[:after]:
        resumed.pass_over(span)
    rest = [*told(resumed, spans[after:]), *resumed.end(EndingCode.COMPLETED, [], USAGE, len(spans) + 1)]
    assert first + rest == everything
    assert all(number <= after for _, _, number in first)
    assert all(number >= after for _, _, number in rest)


@pytest.mark.parametrize("code", [code for code in EndingCode if ENDINGS[code].is_error])
def test_every_failing_ending_becomes_an_error_of_anthropics(code: EndingCode) -> None:
    rule = ENDINGS[code]
    error = error_object(rule.status, code.value, rule.message, "model", R)
    response = ErrorResponse.model_validate(error, strict=True)
    assert (response.request_id, response.error.message) == (R, rule.message)
    assert extras(response) == {"code", "param", "details"}
    assert error["error"]["code"] == error["error"]["details"]["error_code"] == code.value


def test_a_thread_is_refused_so_that_the_package_goes_on_without_one() -> None:
    refused = error_object(400, EndingCode.UNSUPPORTED_PARAMETER.value, "thread is not supported.", "thread", R)
    assert refused["error"]["code"] == EndingCode.UNSUPPORTED_PARAMETER.value
    assert refused["error"]["details"]["error_code"] == "thread_unsupported_request"


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (400, "invalid_request", "invalid_request_error"), (401, "invalid_api_key", "authentication_error"),
        (403, "x", "permission_error"), (404, "model_not_found", "not_found_error"),
        (405, "method_not_allowed", "invalid_request_error"), (413, "request_too_large", "request_too_large"),
        (415, "unsupported_media_type", "invalid_request_error"), (429, "rate_limited_tokens", "rate_limit_error"),
        (499, "cancelled", "api_error"), (500, "internal_error", "api_error"), (502, "engine_failed", "api_error"),
        (503, "overloaded", "overloaded_error"), (503, "partition_moved", "api_error"),
        (504, "deadline_exceeded", "timeout_error"),
    ],
)  # fmt: skip
def test_errors_have_anthropics_types(status: int, code: str, expected: str) -> None:
    assert error_type(status, code) == expected


def test_what_exceeds_the_context_is_said_in_words_that_clients_recognise() -> None:
    assert overflow_message(2_048, 3_000, 10) == "prompt is too long: 3000 tokens > 2048 maximum"
    assert overflow_message(2_048, 2_000, 100) == (
        "input length and `max_tokens` exceed context limit: 2000 + 100 > 2048, "
        "decrease input length or `max_tokens` and try again"
    )
    assert "prompt is too long" in endless_message(2_048)
    assert "> 2048 maximum" in endless_message(2_048)


def test_the_stop_sequence_is_told_whole_and_streamed() -> None:
    spans = spans_of([Piece("content", "Once")])
    for stopped_by, reason, sequence in ((["END"], "stop_sequence", "END"), ([7], "end_turn", None)):
        answer = message_object(
            response_id=R, model="tiny", rows=spans, code=EndingCode.COMPLETED, finish_reasons=["stop"], usage=USAGE,
            stopped_by=stopped_by,
        )  # fmt: skip
        message = Message.model_validate(answer, strict=True)
        assert (message.stop_reason, message.stop_sequence) == (reason, sequence)
        assert not extras(message)
        delta, _ = EventWriter(R).end(EndingCode.COMPLETED, ["stop"], USAGE, 2, stopped_by)
        event = EVENT.validate_json(delta[1], strict=True)
        assert (event.delta.stop_reason, event.delta.stop_sequence) == (reason, sequence)
