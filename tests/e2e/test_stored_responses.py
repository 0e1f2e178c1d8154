"""Conversations by id on the whole stack, by OpenAI's own package, in the database that comes with it."""

import json
import stat
from typing import Any

import openai
import pytest

from deploy.local.runner import Stack
from streams.metadata.engine import FILE_NAME
from tests.e2e.stacks import is_scripted, openai_client

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

WEATHER: dict[str, Any] = {
    "type": "function", "name": "get_weather", "strict": True,
    "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "enum": ["Bern"]}}, "required": ["city"],
        "additionalProperties": False,
    },
}  # fmt: skip


def test_three_turns_go_on_by_id(demo: openai.OpenAI) -> None:
    first = demo.responses.create(model="default", input="Hello!", instructions="Be brief.")
    second = demo.responses.create(model="default", input="And then?", previous_response_id=first.id)
    with demo.responses.stream(model="default", input="The end?", previous_response_id=second.id) as stream:
        third = stream.get_final_response()
    used = [response.usage for response in (first, second, third)]
    tokens = [(usage.input_tokens, usage.output_tokens) for usage in used if usage is not None]
    assert tokens[1][0] > tokens[0][1], "the answer before it is part of the prompt"
    assert tokens[2][0] > tokens[1][0] + tokens[1][1]
    assert [response.previous_response_id for response in (first, second, third)] == [None, first.id, second.id]
    again = demo.responses.retrieve(third.id)
    assert (again.output_text, again.usage, again.previous_response_id) == (third.output_text, third.usage, second.id)
    said = demo.responses.input_items.list(second.id).data
    assert [item.to_dict()["content"][0]["text"] for item in said] == ["And then?"]  # type: ignore[index]


def test_a_call_is_answered_by_id(demo: openai.OpenAI) -> None:
    tools: Any = [WEATHER]
    called = demo.responses.create(model="default", input="Weather?", tools=tools, tool_choice="required")
    [call] = [item for item in called.output if item.type == "function_call"]
    assert json.loads(call.arguments) == {"city": "Bern"}
    with pytest.raises(openai.BadRequestError, match=f"No tool output found for function call {call.call_id}"):
        demo.responses.create(model="default", input="Well?", previous_response_id=called.id)
    told: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "4 °C"}]
    answer = demo.responses.create(model="default", input=told, previous_response_id=called.id)
    assert is_scripted(answer.output_text)


def test_what_is_not_stored_or_deleted_or_another_s_is_not_found(stack: Stack) -> None:
    with openai_client(stack) as owner, openai_client(stack, "guarded") as stranger:
        passing = owner.responses.create(model="default", input="Hello!", store=False)
        kept = owner.responses.create(model="default", input="Hello!")
        for client, unknown in ((owner, passing.id), (stranger, kept.id)):
            with pytest.raises(openai.NotFoundError) as error:
                client.responses.create(model="default", input="Go on.", previous_response_id=unknown)
            assert error.value.code == "previous_response_not_found"
            with pytest.raises(openai.NotFoundError):
                client.responses.delete(unknown)
        owner.responses.delete(kept.id)
        with pytest.raises(openai.NotFoundError):
            owner.responses.retrieve(kept.id)
        with pytest.raises(openai.NotFoundError):
            owner.responses.create(model="default", input="Go on.", previous_response_id=kept.id)


def test_the_database_of_the_stack_is_its_owner_s_alone(stack: Stack) -> None:
    files = list(stack.data.path.glob(f"{FILE_NAME}*"))
    assert files
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
