"""Calls of tools in OpenAI's chunks: what the package's own accumulation makes of them, cut and resumed anywhere."""

import json
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from schemas.endings import EndingCode
from schemas.generated import Kind
from schemas.responses import Terminal
from streams.dialects.openai_chat import parse_chat_request
from streams.dialects.tool_calls import call_id
from streams.gateway.fan_out.spans import Span
from streams.gateway.http.dialects.chat_completions import CHAT_COMPLETIONS
from streams.gateway.http.dialects.port import Answer, Opening
from tests.unit.streams.gateway.gateway_stack import terminal
from tests.unit.streams.gateway.http_clients import HELLO, events_of
from tests.unit.streams.gateway.hub_stories import ACME, R

Part = tuple[Kind, int, str]
WEATHER: list[Part] = [
    ("tool_name", 0, "get_weather"),
    ("tool_arguments", 0, '{"city": "Zürich 👋"}'),
    ("tool_name", 1, "get_time"),
    ("tool_arguments", 1, '{"zone": "CET"}'),
]


def spans_of(parts: list[Part], size: int = 3, grouping: int = 1, choice: int = 0) -> list[Span]:
    """Tokens of so many characters, so many of them in a span where they are of one part."""
    spans: list[Span] = []
    number = 0
    for kind, call, text in parts:
        tokens = [text[begin : begin + size] for begin in range(0, len(text), size)]
        for begin in range(0, len(tokens), grouping):
            run = tokens[begin : begin + grouping]
            ends = [*accumulate(map(len, run))]
            spans.append(Span(number + 1, number + len(run), choice, kind, "".join(run), ends, 0, call))
            number += len(run)
    return spans


def end_of(spans: list[Span], reason: str = "tool_calls", code: EndingCode = EndingCode.COMPLETED) -> Terminal:
    choices = max((span.choice for span in spans), default=0) + 1
    return terminal(R, ACME, spans[-1].sequence_number + 1, code, finish_reasons=[reason] * choices)


def chunks_of(spans: list[Span], end: Terminal, after: int = 0) -> list[dict[str, Any]]:
    """What is told of the tokens beyond `after`."""
    events = CHAT_COMPLETIONS.events(None, Opening(R, 7, "tiny", after=after))
    rest = [new for span in spans if (new := span.after(after)) is not None]
    told = b"".join(map(events.span, rest)) + events.terminal(end)
    return [json.loads(data) for _, data in events_of(told.decode()) if data != "[DONE]"]


def accumulated(chunks: list[dict[str, Any]]) -> ChatCompletion:
    """As openai's package puts them together; each is checked against its types."""
    state = ChatCompletionStreamState()
    for chunk in chunks:
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk, strict=True))
    return state.current_completion_snapshot


def whole_of(spans: list[Span], end: Terminal) -> dict[str, Any]:
    whole = CHAT_COMPLETIONS.whole(parse_chat_request(HELLO), Answer(R, 7, "tiny", spans, end))
    ChatCompletion.model_validate(whole, strict=True)
    return whole


def told_calls(completion: ChatCompletion, choice: int = 0) -> list[dict[str, Any]]:
    return [
        {
            "id": call.id,
            "type": call.type,
            "function": {"name": call.function.name, "arguments": call.function.arguments},
        }
        for call in completion.choices[choice].message.tool_calls or []
        if call.type == "function"
    ]


def deltas_of(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [delta for chunk in chunks for c in chunk["choices"] for delta in c["delta"].get("tool_calls", [])]


def test_a_call_begins_with_its_id_its_type_and_its_whole_name() -> None:
    spans = spans_of(WEATHER)
    chunks = chunks_of(spans, end_of(spans))
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": None, "refusal": None}
    for index, deltas in groupby(deltas_of(chunks), itemgetter("index")):
        first, *others = deltas
        function = {"name": WEATHER[2 * index][2], "arguments": ""}
        assert first == {"index": index, "id": call_id(R, 0, index), "type": "function", "function": function}
        told = [other["function"]["arguments"] for other in others]
        assert others == [{"index": index, "function": {"arguments": text}} for text in told]
        assert "".join(told) == WEATHER[2 * index + 1][2]
        assert len(told) > 1, "they flow"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]][-1] == "tool_calls"


def test_a_whole_answer_that_only_calls_has_no_content() -> None:
    spans = spans_of(WEATHER)
    [choice] = whole_of(spans, end_of(spans))["choices"]
    assert choice == {
        "index": 0, "logprobs": None, "finish_reason": "tool_calls",
        "message": {
            "role": "assistant", "content": None, "refusal": None,
            "tool_calls": [
                {"id": call_id(R, 0, call), "type": "function", "function": {"name": name, "arguments": arguments}}
                for call, name, arguments in ((0, "get_weather", WEATHER[1][2]), (1, "get_time", WEATHER[3][2]))
            ],
        },
    }  # fmt: skip


def test_a_whole_answer_has_its_reasoning_beside_its_text() -> None:
    spans = spans_of([("reasoning", 0, "Hmm."), ("content", 0, "Yes.")])
    [choice] = whole_of(spans, end_of(spans, "stop"))["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Yes.", "refusal": None, "reasoning_content": "Hmm."}


def test_a_choice_that_says_nothing_is_there_all_the_same() -> None:
    spans = spans_of([("content", 0, "Yes.")])
    end = terminal(R, ACME, spans[-1].sequence_number + 1, finish_reasons=["stop", "length"])
    assert [choice["finish_reason"] for choice in whole_of(spans, end)["choices"]] == ["stop", "length"]


texts = st.text('ab {}"\n\\é👋', max_size=12)


@st.composite
def answers(draw: st.DrawFn) -> list[Part]:
    """Thoughts, text and calls; a name is never empty, and arguments may be."""
    parts: list[Part] = [("reasoning", 0, draw(texts)), ("content", 0, draw(texts))]
    for call in range(draw(st.integers(0, 3))):
        parts.append(("tool_name", call, draw(st.text("abc_", min_size=1, max_size=9))))
        parts.append(("tool_arguments", call, draw(texts)))
    if not any(text for _, _, text in parts):
        parts.append(("content", 0, "x"))
    return parts


@settings(max_examples=40)
@given(answers(), st.integers(1, 4), st.integers(1, 4), st.sampled_from(["tool_calls", "length", "content_filter"]))
def test_the_package_puts_together_what_the_whole_answer_says(
    parts: list[Part], size: int, grouping: int, reason: str
) -> None:
    spans = spans_of(parts, size, grouping)
    end = end_of(spans, reason)
    message = whole_of(spans, end)["choices"][0]["message"]
    completion = accumulated(chunks_of(spans, end))
    [choice] = completion.choices
    assert choice.finish_reason == reason
    assert (choice.message.content or "") == (message["content"] or "")
    assert getattr(choice.message, "reasoning_content", "") == message.get("reasoning_content", "")
    assert told_calls(completion) == message.get("tool_calls", [])


@settings(max_examples=40)
@given(answers(), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_who_was_cut_off_anywhere_puts_the_same_together(
    parts: list[Part], size: int, grouping: int, other_grouping: int
) -> None:
    """The rest may be grouped otherwise; nothing in it repeats what came before its number."""
    spans, others = spans_of(parts, size, grouping), spans_of(parts, size, other_grouping)
    end = end_of(spans)
    chunks = chunks_of(spans, end)
    whole = accumulated(chunks).choices[0].message
    last = spans[-1].sequence_number
    for seen, chunk in enumerate(chunks, 1):
        number = chunk["sequence_number"]
        if number == 0 or (seen < len(chunks) and chunks[seen]["sequence_number"] == number):
            continue
        rest = chunks_of(others, end, number) if number <= last else []
        assert accumulated(chunks[:seen] + rest).choices[0].message == whole


def test_choices_that_call_at_once_are_put_together_apart() -> None:
    """What another one says between the parts of a name cuts it: the package joins them."""
    one, other = spans_of(WEATHER), spans_of(WEATHER, 2, choice=1)
    turns: list[Span] = []
    for number, span in enumerate([span for pair in zip(one, other, strict=False) for span in pair], 1):
        turns.append(span._replace(first_sequence=number, sequence_number=number))
    end = end_of(turns)
    completion, whole = accumulated(chunks_of(turns, end)), whole_of(turns, end)
    for choice in (0, 1):
        assert told_calls(completion, choice) == whole["choices"][choice]["message"]["tool_calls"]


@pytest.mark.parametrize("code", [EndingCode.COMPLETED, EndingCode.CANCELLED, EndingCode.GENERATION_INTERRUPTED])
def test_a_name_that_nothing_follows_is_told_before_the_end(code: EndingCode) -> None:
    spans = spans_of(WEATHER[:1])
    told = deltas_of([chunk for chunk in chunks_of(spans, end_of(spans, "length", code)) if "choices" in chunk])
    assert [delta["function"]["name"] for delta in told] == ["get_weather"]
