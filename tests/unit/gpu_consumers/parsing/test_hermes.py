"""The Hermes format, cut into tokens anyhow."""

from hypothesis import given
from hypothesis import strategies as st

from gpu_consumers.parsing.hermes import HermesParser
from tests.unit.gpu_consumers.parsing.answers import TEXT, Answer, answers, cut, merged, parsed, without_markers


def call(body: str) -> str:
    return f"<tool_call>{body}</tool_call>"


def read(text: str, *, reasoning: bool = False, calls: bool = True) -> list[tuple[str, int, str]]:
    return parsed(HermesParser(reasoning=reasoning, calls=calls), list(text))


@given(st.data(), answers(reasoning=True))
def test_however_an_answer_is_cut_the_same_comes_of_it(data: st.DataObject, answer: Answer) -> None:
    texts = data.draw(cut(answer.text))
    assert parsed(HermesParser(reasoning=True, calls=True), texts) == answer.told


@given(st.data(), st.text(st.sampled_from('<>tool_ca/{}:,"name arguments\\🦊'), max_size=40))
def test_whatever_a_model_says_no_cut_matters_and_a_call_begins_with_its_name(data: st.DataObject, text: str) -> None:
    text = data.draw(st.sampled_from(["", "<tool_call>", '<tool_call>{"name": "f", "arguments": '])) + text
    told = parsed(HermesParser(reasoning=True, calls=True), data.draw(cut(text)))
    assert told == read(text, reasoning=True)
    named = [number for kind, number, _ in told if kind == "tool_name"]
    assert named == list(range(len(named)))
    for index, (kind, number, _) in enumerate(told):
        assert kind != "tool_arguments" or told[index - 1][:2] == ("tool_name", number)


@given(TEXT.filter(without_markers))
def test_what_looks_like_a_marker_and_is_none_is_told(text: str) -> None:
    assert read(text) == merged([("content", 0, text)])
    assert read("<tool_call", calls=True) == [("content", 0, "<tool_call")]
    assert read(call('{"name": "f"}'), calls=False) == [("content", 0, call('{"name": "f"}'))]


def test_arguments_are_told_as_they_are_written_and_end_with_their_value() -> None:
    assert read(call('{"name":"f","arguments":{"a" : "}\\"{", "b":[1, {}]}  }')) == [
        ("tool_name", 0, "f"),
        ("tool_arguments", 0, '{"a" : "}\\"{", "b":[1, {}]}'),
    ]
    assert read(call('{"name": "f", "arguments": 17, "more": 1}')) == [
        ("tool_name", 0, "f"),
        ("tool_arguments", 0, "17"),
    ]


def test_arguments_that_come_before_the_name_wait_for_it() -> None:
    assert read(call('{"arguments": {"a": 1}, "name": "f"}')) == [
        ("tool_name", 0, "f"),
        ("tool_arguments", 0, '{"a": 1}'),
    ]


def test_a_call_without_a_name_is_none() -> None:
    told = read(call('{"arguments": {"a": 1}}') + call("nonsense") + call('{"name": 7}') + call('{"name": "g"}'))
    assert told == [("tool_name", 0, "g")]


def test_a_call_that_is_cut_off_is_told_as_far_as_it_goes() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"city": "Par'
    assert read(text) == [("tool_name", 0, "f"), ("tool_arguments", 0, '{"city": "Par')]
    assert read('<tool_call>{"name": "f') == []


def test_arguments_are_told_while_they_are_written() -> None:
    parser = HermesParser(reasoning=False, calls=True)
    parser.feed(0, '<tool_call>{"name": "f", "arguments": {"city": "Pa', is_last=False)
    assert [piece.text for piece in parser.feed(1, "ris", is_last=False)] == ["ris"]


def test_text_behind_the_first_call_is_left_out() -> None:
    assert read("Well. " + call('{"name": "f"}') + " That was it.") == [("content", 0, "Well. "), ("tool_name", 0, "f")]
