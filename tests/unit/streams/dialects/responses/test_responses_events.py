"""A response's events are OpenAI's, in its order; their numbers let everybody come back, however tokens are grouped."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState

from schemas.endings import ENDINGS, EndingCode
from streams.dialects.responses.body import parse_responses_request
from streams.dialects.responses.events import EventWriter
from streams.dialects.responses.numbering import number_of, seen
from streams.dialects.responses.objects import About
from streams.dialects.responses.telling import Telling
from streams.dialects.tool_calls import call_id
from tests.unit.streams.dialects.responses.told import (
    ABOUT,
    EVENT,
    RESPONSE_ID,
    Token,
    events_of,
    grouped,
    said,
    seen_of,
    started,
    terminal,
    told,
)

HELLO = said("content", "Hel", "lo", " you")
THOUGHT = said("reasoning", "Hm", ".")
WEATHER = [*said("tool_name", "get_", "weather"), *said("tool_arguments", '{"city":', '"Rome"}')]
CLOCK = said("tool_name", "clock", call=1)
EVERYTHING = [*THOUGHT, *HELLO, *WEATHER, *CLOCK]


def types_of(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_a_text_is_told_in_openais_order() -> None:
    events = told(HELLO, cuts=[True, True])
    assert types_of(events) == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.delta", "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert [event["delta"] for event in events if "delta" in event] == ["Hel", "lo", " you"]
    assert events[7]["text"] == "Hello you"
    last = seen_of(events[-1])
    assert (last.status, last.output_text, last.model, last.created_at) == (
        "completed",
        "Hello you",
        "tiny",
        1_790_000_000,
    )
    assert last.usage is not None
    assert (last.usage.input_tokens, last.usage.output_tokens, last.usage.total_tokens) == (5, 7, 12)
    assert last.usage.input_tokens_details.cached_tokens == 2
    assert last.usage.output_tokens_details.reasoning_tokens == 3
    assert last.completed_at == 1_790_000_002


def test_reasoning_text_and_calls_are_items_of_their_own() -> None:
    events = told(EVERYTHING)
    assert types_of(events) == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done",
        "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done",
        "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "output_item.added", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    assert [event["output_index"] for event in events if "output_index" in event] == [0] * 6 + [1] * 6 + [2] * 4 + [
        3
    ] * 3
    output = events[-1]["response"]["output"]
    assert output == [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert [(item["name"], item["arguments"], item["call_id"]) for item in output[2:]] == [
        ("get_weather", '{"city":"Rome"}', call_id(RESPONSE_ID, 0, 0)), ("clock", "", call_id(RESPONSE_ID, 0, 1)),
    ]  # fmt: skip
    assert len({item["id"] for item in output}) == 4


def test_a_call_is_announced_once_its_name_is_whole() -> None:
    [added] = [event for event in told(WEATHER, cuts=[True] * 4) if event["type"] == "response.output_item.added"]
    assert (added["item"]["name"], added["item"]["arguments"]) == ("get_weather", "")


def test_openais_package_puts_the_same_response_together() -> None:
    state: Any = ResponseStreamState(input_tools=omit, text_format=omit)
    for event in told(EVERYTHING, cuts=[True] * len(EVERYTHING)):
        state.handle_event(EVENT.validate_python(event))
    whole = state._completed_response
    assert whole.output_text == "Hello you"
    assert [item.arguments for item in whole.output if item.type == "function_call"] == ['{"city":"Rome"}', ""]


@pytest.mark.parametrize("code", EndingCode)
def test_every_ending_has_its_event_and_status(code: EndingCode) -> None:
    events = told(HELLO, terminal(3, code))
    last, item = seen_of(events[-1]), events[-2]["item"]
    assert types_of(events)[-4:-1] == ["output_text.done", "content_part.done", "output_item.done"]
    if code is EndingCode.COMPLETED:
        expected = ("completed", "completed", "completed")
    elif code is EndingCode.SAFETY_HALTED:
        expected = ("incomplete", "incomplete", "incomplete")
        assert last.incomplete_details is not None
        assert last.incomplete_details.reason == "content_filter"
    elif code is EndingCode.CANCELLED:
        expected = ("incomplete", "cancelled", "incomplete")
    else:
        expected = ("failed", "failed", "incomplete")
        assert last.error is not None
        assert last.error.message == ENDINGS[code].message
        assert (last.error.code == "rate_limit_exceeded") == (ENDINGS[code].status == 429)
    assert (types_of(events)[-1], last.status, item["status"]) == expected


def test_an_answer_that_is_cut_off_at_its_bound_says_so() -> None:
    last = seen_of(told(HELLO, terminal(3, finish="length"))[-1])
    assert last.status == "incomplete"
    assert last.incomplete_details is not None
    assert last.incomplete_details.reason == "max_output_tokens"


def test_an_answer_without_any_token_is_one_empty_message() -> None:
    events = told([])
    assert types_of(events) == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.done", "content_part.done",
        "output_item.done", "completed",
    ]  # fmt: skip
    assert [item.type for item in seen_of(events[-1]).output] == ["message"]
    failed = told([], terminal(0, EndingCode.ENGINE_FAILED))
    assert types_of(failed) == ["created", "in_progress", "failed"]


def test_what_goes_on_in_the_background_is_queued_first() -> None:
    events = told(HELLO, start=started(background=True))
    assert types_of(events)[:3] == ["created", "queued", "in_progress"]
    assert [seen_of(event).status for event in events[:3]] == ["queued", "queued", "in_progress"]
    assert seen_of(events[-1]).background is True


def test_every_object_repeats_the_request() -> None:
    tool = {"type": "function", "name": "add", "parameters": {"type": "object", "maximum": 10**30}}
    asked = parse_responses_request(
        {
            "model": "small", "input": "Hi", "instructions": "Be brief.", "temperature": 0.5, "tools": [tool],
            "tool_choice": {"type": "function", "name": "add"}, "metadata": {"a": "ü"}, "max_output_tokens": 9,
            "parallel_tool_calls": False, "store": False, "user": "ann",
        }
    )  # fmt: skip
    for event in told(HELLO, start=started(echo=asked.echo)):
        if "response" in event:
            told_of = seen_of(event)
            assert (told_of.instructions, told_of.temperature, told_of.metadata) == ("Be brief.", 0.5, {"a": "ü"})
            assert (told_of.max_output_tokens, told_of.parallel_tool_calls) == (9, False)
            assert event["response"]["tool_choice"] == {"type": "function", "name": "add"}
            assert event["response"]["tools"][0]["parameters"] == tool["parameters"]
            assert (event["response"]["store"], event["response"]["user"]) == (False, None)


@pytest.mark.parametrize("kind", ["text", "json_object", "json_schema"])
def test_every_format_is_repeated_in_openais_shape(kind: str) -> None:
    form = {"type": kind, **({"name": "p", "schema": {"type": "object"}} if kind == "json_schema" else {})}
    asked = parse_responses_request({"model": "small", "input": "Hi", "text": {"format": form}})
    last = told(HELLO, start=started(echo=asked.echo))[-1]
    assert last["response"]["text"]["format"] == form
    seen_of(last)


def test_of_a_token_in_the_middle_of_a_character_nothing_is_told() -> None:
    tokens = said("content", "", "é", "")
    events = told(tokens, cuts=[True] * 3)
    assert [event["delta"] for event in events if "delta" in event] == ["é"]
    assert events == told(tokens, cuts=[True] * 3, after=-1)


def test_an_item_begins_with_the_first_text_of_it() -> None:
    silent = said("content", "", "")
    alone = told(WEATHER)
    assert [item["type"] for item in told([*silent, *WEATHER])[-1]["response"]["output"]] == ["function_call"]
    assert types_of(told([*silent, *WEATHER])) == types_of(alone)
    between = [*THOUGHT, *silent, *THOUGHT, *silent, *HELLO]
    assert [item["type"] for item in told(between)[-1]["response"]["output"]] == ["reasoning", "message"]
    assert [item.type for item in seen_of(told(silent)[-1]).output] == ["message"]
    call = [Token("tool_name", "f", 0), Token("tool_arguments", "", 0), Token("tool_arguments", "{}", 0)]
    assert without_deltas(told(call, cuts=[True] * 3)) == without_deltas(told(call))


def test_who_is_given_up_may_come_back_with_any_number() -> None:
    writer = EventWriter(Telling(RESPONSE_ID), ABOUT)
    sent = [writer.text(*span) for span in grouped(HELLO[:2])]
    [*_, delta, error] = events_of(*sent, writer.give_up("slow_viewer", "The viewer read too slowly."))
    assert (error["type"], error["code"]) == ("error", "slow_viewer")
    assert delta["sequence_number"] < error["sequence_number"] < number_of(3, 0)
    assert [event["delta"] for event in told(HELLO, after=error["sequence_number"]) if "delta" in event] == [" you"]
    late = EventWriter(Telling(RESPONSE_ID), ABOUT, after=number_of(9, 5))
    [again] = events_of(late.give_up("slow_viewer", ""))
    assert again["sequence_number"] == number_of(9, 5), "what it had seen, and no more"


@pytest.mark.parametrize("whole", [HELLO, [*said("content", "", ""), *HELLO], said("content", ""), []], ids=len)
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("before", [False, True], ids=["started", "not started"])
def test_who_is_given_up_before_any_text_lacks_no_event_afterwards(
    whole: list[Token], background: bool, before: bool
) -> None:
    start = started(background)
    writer = EventWriter(Telling(RESPONSE_ID), About.of(start))
    sent = [] if before else [writer.begin(start)]
    silent = [token for token in whole if not token.text]
    sent += [writer.text(*span) for span in grouped(silent)]
    [*events, error] = events_of(*sent, writer.give_up("slow_viewer", ""))
    rest = told(whole, after=error["sequence_number"], start=start)
    assert [*events, *rest] == told(whole, start=start)
    assert events[-1]["sequence_number"] < error["sequence_number"] < min(event["sequence_number"] for event in rest)


def test_ids_are_the_numbers_where_they_are_wanted() -> None:
    writer = EventWriter(Telling(RESPONSE_ID), About.of(started()), with_ids=True)
    parts = [*(writer.text(*span) for span in grouped(EVERYTHING)), writer.end(terminal(len(EVERYTHING)))]
    sent = b"".join(part for part in parts if isinstance(part, bytes))
    ids = [int(block.rpartition("id: ")[2]) for block in sent.decode().split("\n\n")[:-1]]
    assert ids == [event["sequence_number"] for event in events_of(*parts)]


@st.composite
def answers(draw: st.DrawFn) -> list[Token]:
    """Any items in any order; the tokens of a call stand together, and its name is whole before its arguments."""
    text = st.text('aé\n"}', max_size=3)
    tokens: list[Token] = []
    call = 0
    for kind in draw(st.lists(st.sampled_from(["content", "reasoning", "call"]), max_size=5)):
        if kind == "call":
            tokens += [Token("tool_name", each, call) for each in draw(st.lists(text, min_size=1, max_size=2))]
            tokens += [Token("tool_arguments", each, call) for each in draw(st.lists(text, max_size=3))]
            call += 1
        else:
            tokens += [Token(kind, each) for each in draw(st.lists(text, min_size=1, max_size=4))]  # type: ignore[arg-type]
    return tokens


CUTS = st.lists(st.booleans(), max_size=40)
CODES = st.sampled_from([EndingCode.COMPLETED, EndingCode.SAFETY_HALTED, EndingCode.CANCELLED, EndingCode.STREAM_GAP])


def without_deltas(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if "delta" not in event]


def texts_of(events: list[dict[str, Any]]) -> dict[str, str]:
    """What the deltas of each item say."""
    texts: dict[str, str] = {}
    for event in events:
        if "delta" in event:
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
    return texts


@given(tokens=answers(), one=CUTS, other=CUTS, code=CODES, background=st.booleans())
def test_numbers_increase_and_grouping_moves_no_event_but_deltas(
    tokens: list[Token], one: list[bool], other: list[bool], code: EndingCode, background: bool
) -> None:
    start, end = started(background), terminal(len(tokens), code)
    events, others = told(tokens, end, cuts=one, start=start), told(tokens, end, cuts=other, start=start)
    numbers = [event["sequence_number"] for event in events]
    assert all(before < after for before, after in pairwise(numbers))
    assert without_deltas(events) == without_deltas(others)
    assert texts_of(events) == texts_of(others)
    finished = {
        e["item_id"]: e.get("text", e.get("arguments"))
        for e in events
        if e["type"].endswith(("text.done", "arguments.done"))
    }
    assert {item: text for item, text in finished.items() if text} == texts_of(events)


@given(tokens=answers(), one=CUTS, other=CUTS, code=CODES, data=st.data())
def test_who_comes_back_is_told_what_it_has_not_seen_and_no_more(
    tokens: list[Token], one: list[bool], other: list[bool], code: EndingCode, data: st.DataObject
) -> None:
    """It saw one grouping up to any event, and comes back to another one."""
    end = terminal(len(tokens), code)
    events = told(tokens, end, cuts=one)
    last = data.draw(st.integers(0, len(events)))
    before = events[:last]
    after = before[-1]["sequence_number"] if before else -1
    rest = told(tokens, end, cuts=other, after=after)
    assert all(event["sequence_number"] > after for event in rest)
    assert without_deltas([*before, *rest]) == without_deltas(events)
    assert texts_of([*before, *rest]) == texts_of(events)


@given(token=st.integers(1, 10**6), offset=st.integers(0, 7))
def test_a_number_says_which_tokens_were_seen(token: int, offset: int) -> None:
    assert seen(number_of(token, offset)) == (token if offset >= 5 else token - 1)
    assert seen(offset) == seen(-1) == 0
