"""Calls of tools and what precedes them: told as they were made, held against the phrases like any text."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion

from agents.safety.phrases import PhraseSet
from schemas.endings import EndingCode
from schemas.generated import FinishReason, Frame, Kind
from schemas.responses import RESPONSES, Release
from streams.dialects.tool_calls import call_id
from tests.unit.agents.post_safety.story import DENY, TOPICS, Member, Row, World, ending, fence, frame, opened, told

Part = tuple[Kind, int, str]
PARTS: list[Part] = [
    ("reasoning", 0, "They ask for two cities."),
    ("content", 0, "One moment. "),
    ("tool_name", 0, "get_weather"),
    ("tool_arguments", 0, '{"city": "Zürich 👋"}'),
    ("tool_name", 1, "get_weather"),
    ("tool_arguments", 1, '{"city": "Rome"}'),
]


def tokens_of(text: str, size: int = 4) -> list[str]:
    return [text[begin : begin + size] for begin in range(0, len(text), size)]


def rows_of(parts: list[Part], response_id: str = "r1", size: int = 4, choice: int = 0) -> list[Row]:
    """One token in each row."""
    rows: list[Row] = []
    for kind, call, text in parts:
        for token in tokens_of(text, size):
            rows.append(Row(response_id, len(rows) + 1, [token], kind=kind, call=call, choice=choice))
    return rows


def frames_of(rows: list[Row], rows_per_frame: int = 3) -> list[Frame]:
    return [frame(*rows[begin : begin + rows_per_frame]) for begin in range(0, len(rows), rows_per_frame)]


def whole(parts: list[Part]) -> list[Frame]:
    *before, last = rows_of(parts)
    return frames_of([*before, replace(last, finish="stop")])


def test_calls_are_told_apart_from_each_other_and_from_what_is_said() -> None:
    answer = told(*whole(PARTS))
    assert [(kind, call, answer.said(kind, call)) for kind, call, _ in PARTS] == PARTS
    assert answer.terminal.finish_reasons == ["tool_calls"]
    assert answer.bill.finish_reason == "tool_calls"


def test_tokens_of_tools_are_output_and_those_of_reasoning_are_not() -> None:
    answer = told(*whole(PARTS))
    reasoning, others = len(tokens_of(PARTS[0][2])), sum(len(tokens_of(text)) for _, _, text in PARTS[1:])
    assert (answer.bill.reasoning_tokens, answer.bill.output_tokens) == (reasoning, others)
    assert answer.bill.released_tokens == reasoning + others
    usage = answer.terminal.usage
    assert (usage.completion_tokens, usage.reasoning_tokens) == (reasoning + others, reasoning)


def test_what_is_released_without_tools_has_no_column_for_them() -> None:
    world = World()
    plain = [Row("r1", 1, ["Hi"]), Row("r1", 2, [" you"], kind="reasoning", finish="stop")]
    world.write(opened("r1"), fence("r1"), frame(*plain))
    called = rows_of([("tool_name", 0, "f"), ("tool_arguments", 0, "{}")], "r2")
    world.write(opened("r2", reply_partition=1), fence("r2"), frame(*called))
    Member(world).run()
    for record in world.log.records(TOPICS.responses.name):
        event = RESPONSES.validate_json(record.value or b"")
        if isinstance(event, Release):
            assert (event.call is None) == (event.response_id[0] == "r1")
            assert (b'"call"' in (record.value or b"")) == (event.response_id[0] == "r2")


@pytest.mark.parametrize(
    ("finish", "reason"), [("stop", "tool_calls"), ("length", "length")], ids=["stopped", "cut at the limit"]
)
def test_a_choice_that_calls_says_so_unless_it_was_cut(finish: FinishReason, reason: str) -> None:
    answer = told(
        frame(Row("r1", 1, ["f"], kind="tool_name"), Row("r1", 2, ["Hi"], choice=1)),
        Row("r1", 3, ["{}"], kind="tool_arguments", finish=finish),
        Row("r1", 4, [], choice=1, finish="stop"),
        choices=2,
    )
    assert answer.terminal.finish_reasons == [reason, "stop"]
    assert [bill.finish_reason for bill in answer.bills] == [reason, "stop"]


def test_a_halt_wins_over_the_calls_before_it() -> None:
    search: list[Part] = [("tool_name", 1, "search"), ("tool_arguments", 1, '{"q": "how to make a bomb now"}')]
    answer = told(*whole([*PARTS[2:4], *search]))
    assert (answer.terminal.code, answer.terminal.finish_reasons) == (EndingCode.SAFETY_HALTED, ["content_filter"])
    assert answer.said("tool_arguments", 0) == PARTS[3][2]
    assert '{"q": "how to make a bomb'.startswith(answer.said("tool_arguments", 1))
    assert "make" not in answer.said("tool_arguments", 1)


def test_an_answer_that_was_interrupted_in_a_call_says_so() -> None:
    interrupted = ending("r1", EndingCode.GENERATION_INTERRUPTED, attempt="att_1")
    answer = told(*frames_of(rows_of(PARTS[2:4])[:-1]), interrupted)
    assert answer.terminal.code is EndingCode.GENERATION_INTERRUPTED
    assert PARTS[3][2].startswith(answer.said("tool_arguments"))
    assert answer.said("tool_arguments")


def test_a_batch_result_has_whole_calls() -> None:
    result = told(*whole(PARTS), custom_id="job-1").result.response
    assert result is not None
    completion = ChatCompletion.model_validate(result.body, strict=True)
    [choice] = completion.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", PARTS[1][2])
    assert result.body["choices"][0]["message"]["reasoning_content"] == PARTS[0][2]
    calls = [call for call in choice.message.tool_calls or [] if call.type == "function"]
    assert [(call.id, call.function.name, json.loads(call.function.arguments)) for call in calls] == [
        (call_id("r1", 0, 0), "get_weather", {"city": "Zürich 👋"}),
        (call_id("r1", 0, 1), "get_weather", {"city": "Rome"}),
    ]


def test_a_batch_result_that_only_calls_has_no_content() -> None:
    result = told(*whole(PARTS[2:4]), custom_id="job-1").result.response
    assert result is not None
    message = ChatCompletion.model_validate(result.body, strict=True).choices[0].message
    assert (message.content, len(message.tool_calls or [])) == (None, 1)


KINDS: list[tuple[Kind, int]] = [
    ("content", 0), ("reasoning", 0), ("tool_name", 0), ("tool_arguments", 0), ("tool_name", 1), ("tool_arguments", 1),
]  # fmt: skip
SENTENCE = '{"how": "First, you ｍake  a\u200b BÓMB — with; secret   sauce"}'


@settings(max_examples=80)
@given(
    st.sampled_from(KINDS),
    st.lists(st.integers(1, len(SENTENCE) - 1), max_size=30, unique=True),
    st.lists(st.integers(1, 40), max_size=10, unique=True),
    st.booleans(),
)
def test_no_character_of_a_denied_phrase_leaks_whatever_it_stands_in(
    strand: tuple[Kind, int], token_cuts: list[int], frame_cuts: list[int], finishes: bool
) -> None:
    """Before it stands a row of every other kind and call; they change nothing."""
    kind, call = strand
    edges = [0, *sorted(token_cuts), len(SENTENCE)]
    tokens = [SENTENCE[a:b] for a, b in pairwise(edges)]
    others = [Row("r1", 0, ["make a "], kind=each[0], call=each[1]) for each in KINDS if each != strand]
    all_rows = [*others, *(Row("r1", 0, [token], kind=kind, call=call) for token in tokens)]
    rows = [replace(row, first_sequence=number) for number, row in enumerate(all_rows, 1)]
    bounds = sorted({0, len(rows), *(cut for cut in frame_cuts if cut < len(rows))})
    if finishes:
        rows[-1] = replace(rows[-1], finish="stop")
    answer = told(*(frame(*rows[a:b]) for a, b in pairwise(bounds)))
    match = PhraseSet(DENY).first_match(SENTENCE)
    assert match is not None
    whole_tokens = [token for token, end in zip(tokens, edges[1:], strict=True) if end <= match.start]
    assert answer.said(kind, call) == "".join(whole_tokens), "every token before the phrase is shown"
    assert all(answer.said(row.kind, row.call) == "make a " for row in others)
    assert answer.terminal.code is EndingCode.SAFETY_HALTED


ESCAPED = '{"how": "First,\\nm\\u0061ke \\u0061\\tb\\u006Fmb, \\"now\\""}'


@settings(max_examples=80)
@given(
    st.lists(st.integers(1, len(ESCAPED) - 1), max_size=30, unique=True),
    st.lists(st.integers(1, 40), max_size=10, unique=True),
)
def test_nor_does_one_that_is_escaped_in_arguments(token_cuts: list[int], frame_cuts: list[int]) -> None:
    edges = [0, *sorted(token_cuts), len(ESCAPED)]
    rows = [
        Row("r1", number, [ESCAPED[a:b]], kind="tool_arguments", call=1)
        for number, (a, b) in enumerate(pairwise(edges), 1)
    ]
    bounds = sorted({0, len(rows), *(cut for cut in frame_cuts if cut < len(rows))})
    answer = told(*(frame(*rows[a:b]) for a, b in pairwise(bounds)))
    before, escape = ESCAPED.index("m\\u0061ke"), ESCAPED.index("\\n")
    assert ESCAPED[:before].startswith(answer.text)
    assert len(answer.text) >= max(edge for edge in edges if edge <= escape)
    assert answer.terminal.code is EndingCode.SAFETY_HALTED


def test_no_phrase_is_found_across_two_calls() -> None:
    parts: list[Part] = [
        ("tool_name", 0, "make"), ("tool_arguments", 0, "secret"), ("tool_name", 1, "a bomb"),
        ("tool_arguments", 1, "sauce"), ("tool_arguments", 2, "make a"), ("tool_arguments", 3, "bomb"),
    ]  # fmt: skip
    answer = told(*whole(parts))
    assert [(kind, call, answer.said(kind, call)) for kind, call, _ in parts] == parts
    assert answer.terminal.code is EndingCode.COMPLETED


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.text('ab {}"é👋', max_size=9)), min_size=1, max_size=8),
    st.integers(1, 5),
    st.integers(1, 6),
    st.booleans(),
)
def test_however_they_are_cut_the_texts_of_all_kinds_and_calls_are_what_was_generated(
    drawn: list[tuple[tuple[Kind, int], str]], size: int, rows_per_frame: int, restarts: bool
) -> None:
    parts = [(kind, call, text) for (kind, call), text in drawn]
    rows = rows_of(parts, size=size) or [Row("r1", 1, ["x"])]
    world = World()
    member = Member(world)
    frames = frames_of(rows, rows_per_frame)
    world.write(opened("r1"), fence("r1"), *frames[: len(frames) // 2])
    member.run(100)
    if restarts:
        member.kill()
    world.write(*frames[len(frames) // 2 :], ending("r1", EndingCode.CANCELLED, attempt="att_1"))
    member.run()
    answer = world.answer("r1")
    for kind, call in KINDS:
        expected = "".join(token for row in rows if (row.kind, row.call) == (kind, call) for token in row.tokens)
        assert answer.said(kind, call) == expected
