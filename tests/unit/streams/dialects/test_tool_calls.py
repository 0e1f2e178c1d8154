"""The id of a call is the same whoever tells it, and nobody else's."""

from streams.dialects.tool_calls import call_id


def test_each_call_of_each_choice_of_each_response_has_one_id() -> None:
    calls = [("resp_a", 0, 0), ("resp_a", 0, 1), ("resp_a", 1, 0), ("resp_a", 1, 1), ("resp_b", 0, 0)]
    assert len({call_id(*call) for call in calls}) == len(calls)
    assert [call_id(*call) for call in calls] == [call_id(*call) for call in calls]


def test_it_looks_as_openai_has_it() -> None:
    assert call_id("resp_a", 0, 0).startswith("call_")
    assert call_id("resp_a", 0, 0).removeprefix("call_").isalnum()
