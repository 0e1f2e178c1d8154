"""Answers that are calls or JSON, cut into tokens anyhow: what stands in a string is no call."""

import json
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from gpu_consumers.parsing.either import EitherParser
from gpu_consumers.parsing.hermes import HermesParser
from gpu_consumers.parsing.port import Piece
from tests.unit.gpu_consumers.parsing.answers import JSON, MARKERS, Answer, answers, cut, merged, parsed

CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


def either(*, reasoning: bool) -> EitherParser:
    return EitherParser(
        HermesParser(reasoning=reasoning, calls=True), HermesParser(reasoning=reasoning, calls=False)
    )  # fmt: skip


@given(st.data(), JSON | st.sampled_from([CALL, *MARKERS]) | st.lists(st.sampled_from([CALL, *MARKERS])), st.booleans())
def test_json_is_text_whatever_its_strings_say(data: st.DataObject, value: object, reasoning: bool) -> None:
    text = json.dumps(value, ensure_ascii=False)
    thought = "<think>Hm.</think>" if reasoning else ""
    told = parsed(either(reasoning=reasoning), data.draw(cut(thought + text)))
    assert told == merged([("reasoning", 0, "Hm." if reasoning else ""), ("content", 0, text)])


@given(st.data(), st.booleans())
def test_calls_are_those_that_a_parser_of_calls_tells(data: st.DataObject, reasoning: bool) -> None:
    answer: Answer = data.draw(answers(reasoning=reasoning, calls_alone=True).filter(_has_calls))
    assert parsed(either(reasoning=reasoning), data.draw(cut(answer.text))) == answer.told


def test_an_answer_that_is_cut_off_is_told_as_far_as_it_goes() -> None:
    for text, told in (
        ("", []),
        ("<think>Hm", [("reasoning", 0, "Hm")]),
        ('{"a": "<tool_', [("content", 0, '{"a": "<tool_')]),
        (CALL[:39], [("tool_name", 0, "f")]),
    ):
        assert parsed(either(reasoning=True), list(text) or [""]) == told


def test_json_is_told_while_it_is_written() -> None:
    parser = either(reasoning=False)
    assert [piece.text for piece in parser.feed(0, '{"a', is_last=False)] == ['{"a']
    assert [piece.text for piece in parser.feed(1, '": <tool_call>', is_last=False)] == ['": <tool_call>']


class Looked(Piece):
    """Counts how often its text is looked at."""

    looks = 0

    def __getattribute__(self, name: str) -> object:
        Looked.looks += name == "text"
        return super().__getattribute__(name)


class Plain:
    """Tells each token as it comes."""

    def feed(self, token_id: int, text: str, *, is_last: bool) -> Sequence[Piece]:
        return [Looked("content", 0, text)]


def test_blanks_are_looked_at_once_however_many_come_before_the_answer_begins() -> None:
    Looked.looks = 0
    parser = EitherParser(HermesParser(reasoning=False, calls=True), Plain())
    for token in range(1_000):
        assert not parser.feed(token, "\n", is_last=False)
    told = parser.feed(1_000, "{}", is_last=True)
    assert Looked.looks == 1_001
    assert [piece.text for piece in told] == ["\n"] * 1_000 + ["{}"]


def _has_calls(answer: Answer) -> bool:
    return any(kind == "tool_name" for kind, _, _ in answer.told)
