"""What a client said in its turn is told back as items, each with an id, in pages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from schemas.request import Message, TextPart, ToolCall
from streams.dialects.neutral import RequestError
from streams.dialects.responses.body import parse_responses_request
from streams.dialects.responses.input_items import Page, input_items, item_list

ITEM: TypeAdapter[ResponseItem] = TypeAdapter(ResponseItem)
CONVERSATION = [
    Message(role="system", content=[TextPart(text="Rule.")]),
    Message(role="user", content=[TextPart(text="a"), TextPart(text="b")]),
    Message(
        role="assistant", content=[TextPart(text="Hm.")], tool_calls=[ToolCall(id="c1", name="add", arguments="{}")]
    ),
    Message(role="tool", content=[TextPart(text="3")], tool_call_id="c1"),
    Message(role="user", content=[TextPart(text="So?")]),
]


def test_each_message_is_told_as_openais_items() -> None:
    items = input_items("resp_1", CONVERSATION)
    for item in items:
        ITEM.validate_python(item)
    assert [item["type"] for item in items] == [
        "message", "message", "message", "function_call", "function_call_output", "message",
    ]  # fmt: skip
    assert [part["text"] for part in items[1]["content"]] == ["a", "b"]
    assert (items[3]["call_id"], items[3]["name"], items[3]["arguments"]) == ("c1", "add", "{}")
    assert (items[4]["call_id"], items[4]["output"]) == ("c1", "3")
    ids = [item["id"] for item in items]
    assert len(set(ids)) == len(ids)
    assert ids == [item["id"] for item in input_items("resp_1", CONVERSATION)]
    assert not set(ids) & {item["id"] for item in input_items("resp_2", CONVERSATION)}


def test_sent_back_they_are_the_same_conversation() -> None:
    items = input_items("resp_1", CONVERSATION)
    again = parse_responses_request({"model": "tiny", "input": items})
    assert again.messages == CONVERSATION


@given(st.integers(0, 25), st.integers(1, 10), st.sampled_from(["asc", "desc"]))
def test_page_by_page_every_item_is_told_once(count: int, limit: int, order: str) -> None:
    items = input_items("resp_1", [Message(role="user", content=[TextPart(text=str(n))]) for n in range(count)])
    seen: list[object] = []
    after = None
    while True:
        page = item_list(items, Page(after, limit, order))  # type: ignore[arg-type]
        assert len(page["data"]) <= limit
        seen += page["data"]
        after = page["last_id"]
        if not page["has_more"]:
            break
    assert seen == (items if order == "asc" else items[::-1])


def test_a_page_after_nothing_known_is_refused() -> None:
    with pytest.raises(RequestError) as error:
        item_list(input_items("resp_1", CONVERSATION), Page(after="msg_0"))
    assert error.value.param == "after"
