"""A request that goes on with earlier turns is the conversation that its client would have sent whole, or refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.request import MAX_MESSAGES, MAX_PARTS_OF_MESSAGE, Message, TextPart, ToolCall
from streams.dialects.continuation import EarlierTurn, continued
from streams.dialects.fields import MAX_PARTS
from streams.dialects.neutral import RequestError
from streams.dialects.responses.body import ResponsesRequest, parse_responses_request

HELLO: dict[str, Any] = {"model": "tiny", "input": "And now?", "previous_response_id": "resp_1"}


def asked(**more: Any) -> ResponsesRequest:
    return parse_responses_request({**HELLO, **more})


def text(role: Any, said: str) -> Message:
    return Message(role=role, content=[TextPart(text=said)])


def calls(*ids: str, said: str = "") -> Message:
    content = [TextPart(text=said)] if said else []
    return Message(role="assistant", content=content, tool_calls=[ToolCall(id=each, name="add") for each in ids])


def output(call_id: str, said: str = "3") -> dict[str, str]:
    return {"type": "function_call_output", "call_id": call_id, "output": said}


def told(request: ResponsesRequest) -> list[tuple[str, str, list[str], str | None]]:
    return [(m.role, m.text, [call.id for call in m.tool_calls], m.tool_call_id) for m in request.messages]


def refused(request: ResponsesRequest, *earlier: EarlierTurn) -> tuple[str | None, str]:
    with pytest.raises(RequestError) as error:
        continued(request, earlier)
    return error.value.param, error.value.message


def test_earlier_turns_stand_between_the_instructions_and_the_new_input() -> None:
    first = EarlierTurn([text("system", "A rule."), text("user", "One?")], text("assistant", "One."))
    second = EarlierTurn([text("user", "Two?")], text("assistant", "Two."))
    request = continued(asked(instructions="Be brief."), [first, second])
    assert [(role, said) for role, said, _, _ in told(request)] == [
        ("system", "Be brief."), ("system", "A rule."), ("user", "One?"), ("assistant", "One."), ("user", "Two?"),
        ("assistant", "Two."), ("user", "And now?"),
    ]  # fmt: skip
    assert request.turn is not None
    assert [message.text for message in request.turn.messages] == ["And now?"], "its own turn alone is stored"


def test_the_results_of_calls_come_with_the_new_input() -> None:
    turn = EarlierTurn([text("user", "Add.")], calls("c1", "c2", said="Well."))
    request = continued(asked(input=[output("c2"), output("c1"), {"role": "user", "content": "So?"}]), [turn])
    assert told(request)[1:] == [
        ("assistant", "Well.", ["c1", "c2"], None), ("tool", "3", [], "c2"), ("tool", "3", [], "c1"),
        ("user", "So?", [], None),
    ]  # fmt: skip


def test_a_call_without_its_result_is_refused_in_openais_words() -> None:
    turn = EarlierTurn([text("user", "Add.")], calls("c1", "c2"))
    param, message = refused(asked(input=[output("c1")]), turn)
    assert (param, message) == ("input", "input: No tool output found for function call c2.")


def test_a_result_of_no_call_names_its_item() -> None:
    turn = EarlierTurn([text("user", "Add.")], calls("c1"))
    param, message = refused(asked(input=[output("c1"), output("c9")]), turn)
    assert param == "input[1].call_id"
    assert "c9" in message


def test_results_that_come_behind_another_turn_are_refused() -> None:
    turn = EarlierTurn([text("user", "Add.")], calls("c1"))
    param, _ = refused(asked(input=[{"role": "user", "content": "Wait."}, output("c1")]), turn)
    assert param == "previous_response_id.call_id"


@pytest.mark.parametrize(("said", "left"), [("", []), ("Well", [("assistant", "Well", [], None)])])
def test_of_an_answer_that_was_cut_calls_without_results_were_never_made(said: str, left: list[Any]) -> None:
    turn = EarlierTurn([text("user", "Add.")], calls("c1", said=said), is_whole=False)
    request = continued(asked(), [turn])
    assert told(request) == [("user", "Add.", [], None), *left, ("user", "And now?", [], None)]


def test_of_an_answer_that_was_cut_a_call_with_a_result_was_made() -> None:
    turn = EarlierTurn([text("user", "Add.")], calls("c1", "c2"), is_whole=False)
    later = EarlierTurn([text("user", "Hm.")], None)
    request = continued(asked(input=[output("c1")]), [later, turn])
    assert told(request)[2:] == [("assistant", "", ["c1"], None), ("tool", "3", [], "c1")]


def test_a_cut_answer_s_calls_are_answered_by_the_turn_that_followed_it() -> None:
    result = Message(role="tool", content=[TextPart(text="3")], tool_call_id="c1")
    cut = EarlierTurn([text("user", "Add.")], calls("c1", "c2"), is_whole=False)
    following = EarlierTurn([result], text("assistant", "Three."))
    request = continued(asked(), [cut, following])
    assert told(request)[1:4] == [
        ("assistant", "", ["c1"], None), ("tool", "3", [], "c1"), ("assistant", "Three.", [], None)
    ]  # fmt: skip


def test_what_has_too_many_messages_or_parts_names_the_conversation() -> None:
    turn = EarlierTurn([text("user", "One?")], text("assistant", "One."))
    param, message = refused(asked(), *[turn] * (MAX_MESSAGES // 2))
    assert param == "previous_response_id"
    assert str(MAX_MESSAGES) in message
    full = Message(role="user", content=[TextPart(text="x")] * MAX_PARTS_OF_MESSAGE)
    many = EarlierTurn([full], None)
    param, message = refused(asked(), *[many] * (MAX_PARTS // MAX_PARTS_OF_MESSAGE))
    assert param == "previous_response_id"
    assert str(MAX_PARTS) in message
    assert "exceeds the maximum number of tokens allowed" in message, "by which clients know it"


TURNS = st.lists(st.tuples(st.text(min_size=1, max_size=9), st.text(min_size=1, max_size=9)), max_size=8)


@given(TURNS, st.text(min_size=1, max_size=9), st.none() | st.text(min_size=1, max_size=9))
def test_however_a_conversation_is_cut_into_turns_it_is_the_same_as_sent_whole(
    turns: list[tuple[str, str]], last: str, instructions: str | None
) -> None:
    """The way by ids, and the way of a client that keeps everything itself."""
    earlier = [EarlierTurn([text("user", said)], text("assistant", answer)) for said, answer in turns]
    by_id = continued(asked(input=last, instructions=instructions), earlier)
    items = [
        {"role": role, "content": content}
        for said, answer in turns
        for role, content in (("user", said), ("assistant", answer))
    ]
    items.append({"role": "user", "content": last})
    whole = parse_responses_request({"model": "tiny", "input": items, "instructions": instructions})
    assert by_id.messages == whole.messages


CALLED = st.lists(st.integers(1, 3), min_size=1, max_size=5)


@given(CALLED, st.data())
def test_whatever_results_are_given_every_call_in_the_prompt_has_one(called: list[int], data: st.DataObject) -> None:
    """Or it is refused: templates and models never see a call that nobody answered."""
    earlier: list[EarlierTurn] = []
    given_results: list[Message] = [text("user", "Begin.")]
    for turn, count in enumerate(called):
        is_whole = data.draw(st.booleans())
        ids = [f"c{turn}-{number}" for number in range(count)]
        earlier.append(EarlierTurn(given_results, calls(*ids, said="Hm."), is_whole=is_whole))
        answered = ids if is_whole else data.draw(st.lists(st.sampled_from(ids), unique=True))
        given_results = [Message(role="tool", content=[TextPart(text="x")], tool_call_id=each) for each in answered]
        if not answered:
            given_results = [text("user", "Go on.")]
    last = [output(message.tool_call_id or "") for message in given_results if message.role == "tool"]
    request = continued(asked(input=last or "Go on."), earlier)
    waiting: set[str] = set()
    for message in request.messages:
        if message.role == "tool":
            waiting.remove(message.tool_call_id or "")
        else:
            assert not waiting
        waiting |= {call.id for call in message.tool_calls}
    assert not waiting
