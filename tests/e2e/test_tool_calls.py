"""Calls of tools through the whole stack: with OpenAI's package, on a socket, and in what a batch producer reads."""

import json
import uuid
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageFunctionToolCall, ChatCompletionMessageParam

from deploy.local.runner import Stack
from schemas.websocket import Accepted, Delta
from tests.e2e.records import job, result, signature, submit, usage_rows
from tests.e2e.sockets import open_socket
from tests.e2e.stacks import TIMEOUT_S, is_scripted, until_seen_growing, user
from tests.servers import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "How the weather is.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def test_a_call_streams_and_its_result_is_answered(demo: openai.OpenAI) -> None:
    asked: list[ChatCompletionMessageParam] = [*user("How is the weather in Bern?")]
    called: list[ChatCompletionMessageFunctionToolCall] = []

    def pieces() -> list[str]:
        """Of the arguments."""
        with demo.chat.completions.stream(model="default", messages=asked, tools=[WEATHER]) as stream:
            kinds = [event.type for event in stream]
            [choice] = stream.get_final_completion().choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        [call] = choice.message.tool_calls or []
        assert (call.type, call.function.name) == ("function", "get_weather")
        assert json.loads(call.function.arguments).keys() == {"city"}
        called[:] = [call]
        return [kind for kind in kinds if kind == "tool_calls.function.arguments.delta"]

    until_seen_growing(pieces, 3)
    [call] = called
    turn: Any = {
        "role": "assistant",
        "content": None,
        "tool_calls": [call.model_dump(include={"id", "type", "function"})],
    }
    told: Any = {"role": "tool", "tool_call_id": call.id, "content": "4 °C"}
    answer = demo.chat.completions.create(model="default", messages=[*asked, turn, told], tools=[WEATHER])
    assert answer.choices[0].finish_reason == "stop"
    assert is_scripted(answer.choices[0].message.content or "")


def test_streamed_whole_and_looked_up_it_is_the_same_call(demo: openai.OpenAI) -> None:
    whole = demo.chat.completions.create(model="default", messages=user("Weather?"), tools=[WEATHER], seed=3)
    [call] = whole.choices[0].message.tool_calls or []
    again = demo.chat.completions.retrieve(whole.id)
    assert again.choices == whole.choices
    with demo.chat.completions.stream(model="default", messages=user("Weather?"), tools=[WEATHER], seed=3) as stream:
        [other] = stream.get_final_completion().choices[0].message.tool_calls or []
    assert isinstance(call, ChatCompletionMessageFunctionToolCall)
    assert other.function.arguments == call.function.arguments
    assert other.id != call.id


def test_a_call_on_a_socket_is_no_part_of_its_text(stack: Stack) -> None:
    with open_socket(stack) as socket:
        answer = socket.until_ended(socket.ask("How is the weather in Bern?", tools=[WEATHER]))
    assert answer.terminal is not None
    assert answer.terminal.finish_reasons == ["tool_calls"]
    assert answer.text == ""
    assert answer.terminal.usage.completion_tokens == answer.sequence_number


def test_the_result_of_a_call_goes_back_on_the_socket(stack: Stack) -> None:
    with open_socket(stack) as socket:
        called = socket.ask("How is the weather in Bern?", tools=[WEATHER], store=True)
        call = socket.until(Delta, response_id=called).call_id
        socket.until_ended(called)
        socket.send({
            "type": "tool_result", "request_id": "2", "response_id": called, "body": {"model": "default"},
            "results": [{"tool_call_id": call, "content": "4 °C"}],
        })  # fmt: skip
        answer = socket.until_ended(socket.until(Accepted, request_id="2").response_id)
    assert is_scripted(answer.text)


def test_a_producer_reads_whole_calls(stack: Stack) -> None:
    custom_id = f"job-{uuid.uuid4().hex}"
    value = job("How is the weather in Bern?", tools=[WEATHER], max_tokens=200)
    submit(stack, custom_id, value, signature(stack, custom_id, value))
    line = result(stack, custom_id)
    [choice] = line["response"]["body"]["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    [call] = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]).keys() == {"city"}
    until(lambda: usage_rows(stack, f"response_id = '{line['id']}'"), "the job is billed", TIMEOUT_S, every_s=0.2)
    [row] = usage_rows(stack, f"response_id = '{line['id']}'")
    assert row["finish_reason"] == "tool_calls"
    assert int(row["output_tokens"]) == line["response"]["body"]["usage"]["completion_tokens"]
