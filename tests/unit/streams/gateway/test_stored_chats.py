"""Chats that are stored because they ask for it: had, gone on with, deleted; and what came of calls, on a socket."""

import asyncio
import json
from typing import Any

import openai
import pytest

from schemas.websocket import ErrorMessage, RequestMessage
from streams.dialects.tool_calls import call_id
from streams.gateway.websocket.client_messages import read_message
from tests.unit.streams.gateway.gateway_stack import Stack
from tests.unit.streams.gateway.http_clients import HELLO, client, sdk
from tests.unit.streams.gateway.socket_clients import dial, hear, hear_until_terminal, say
from tests.unit.streams.gateway.stored_stories import error_of, previous_not_found, said
from tests.unit.streams.gateway.test_calls_on_connections import call_tools


async def chat(stack: Stack, api: openai.AsyncOpenAI, text: str, **more: Any) -> tuple[Any, Any]:
    answering = asyncio.ensure_future(stack.pipeline.answer(["Par", "is."]))
    messages: Any = [{"role": "user", "content": text}]
    return await api.chat.completions.create(model="small", messages=messages, **more), await answering


async def test_a_chat_that_asks_for_it_is_stored_and_gone_on_with_in_either_api(stack: Stack) -> None:
    async with sdk(stack) as api, client(stack) as http:
        first, _ = await chat(stack, api, "France?", store=True, metadata={"a": "b"})
        again = (await http.get(f"/v1/chat/completions/{first.id}")).json()
        assert (again["metadata"], again["choices"][0]["message"]["content"]) == ({"a": "b"}, "Paris.")
        answering = asyncio.ensure_future(stack.pipeline.answer(["Rome."]))
        second = await api.responses.create(model="small", input="Italy?", previous_response_id=first.id)
        assert said(await answering) == [("user", "France?"), ("assistant", "Paris."), ("user", "Italy?")]
        _, third = await chat(stack, api, "Spain?", extra_body={"previous_response_id": second.id})
        assert [text for _, text in said(third)] == ["France?", "Paris.", "Italy?", "Rome.", "Spain?"]
        told = (await http.get(f"/v1/responses/{first.id}")).json()
        assert (told["store"], told["previous_response_id"]) == (True, None)


async def test_a_stored_chat_is_deleted_as_openai_does(stack: Stack) -> None:
    async with sdk(stack) as api, client(stack) as http:
        kept, _ = await chat(stack, api, "France?", store=True)
        deleted = await api.chat.completions.delete(kept.id)
        assert (deleted.id, deleted.deleted, deleted.object) == (kept.id, True, "chat.completion.deleted")
        with pytest.raises(openai.NotFoundError):
            await api.chat.completions.retrieve(kept.id)
        refused = await http.post("/v1/chat/completions", json={**HELLO, "previous_response_id": kept.id})
        assert error_of(refused) == previous_not_found(kept.id)


async def test_probabilities_are_not_stored_and_who_asks_for_both_is_told(stack: Stack) -> None:
    async with client(stack) as http:
        refused = await http.post("/v1/chat/completions", json={**HELLO, "store": True, "logprobs": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "logprobs")


async def test_who_does_not_ask_for_it_is_not_stored(stack: Stack) -> None:
    async with sdk(stack) as api, client(stack) as http:
        passing, _ = await chat(stack, api, "France?")
        assert (await http.get(f"/v1/responses/{passing.id}")).json()["store"] is False
        refused = await http.post("/v1/chat/completions", json={**HELLO, "previous_response_id": passing.id})
        assert error_of(refused) == previous_not_found(passing.id)


async def test_results_on_a_socket_go_on_with_the_response_that_made_the_calls(stack: Stack) -> None:
    async with dial(stack) as socket:
        await say(socket, type="request", request_id="r1", body={**HELLO, "store": True})
        calling = asyncio.ensure_future(call_tools(stack))
        await hear_until_terminal(socket)
        called = await calling
        ids = [call_id(called.response_id, 0, call) for call in (0, 1)]
        results = [{"tool_call_id": each, "content": "12 °C"} for each in ids]
        asks: dict[str, Any] = {"type": "tool_result", "response_id": called.response_id, "body": {"model": "small"}}
        await say(socket, **asks, request_id="r2", results=results[:1])
        error = await hear(socket)
        assert isinstance(error, ErrorMessage)
        lacking = f"messages: No tool output found for function call {ids[1]}."
        assert (error.error.param, error.error.message, error.request_id) == ("messages", lacking, "r2")
        strange = {"tool_call_id": "call_x", "content": "?"}
        await say(socket, **asks, request_id="r2", results=[*results, strange])
        error = await hear(socket)
        assert isinstance(error, ErrorMessage)
        assert (error.error.code, error.error.param) == ("invalid_request", "messages[2].tool_call_id")
        await say(socket, **asks, request_id="r2", results=results)
        answering = asyncio.ensure_future(stack.pipeline.answer(["Cold."]))
        await hear_until_terminal(socket)
        answered = await answering
        assert [message.role for message in answered.messages] == ["user", "assistant", "tool", "tool"]
        assert [message.tool_call_id for message in answered.messages[2:]] == ids
        assert [call.id for call in answered.messages[1].tool_calls] == ids
        # It is stored as well, so that whoever goes on needs no other turn.
        body = {**HELLO, "previous_response_id": answered.response_id}
        await say(socket, type="request", request_id="r3", body=body)
        answering = asyncio.ensure_future(stack.pipeline.answer(["Bye."]))
        await hear_until_terminal(socket)
        assert [message.role for message in (await answering).messages][3:] == ["tool", "assistant", "user"]


@pytest.mark.parametrize("is_turn", [True, False], ids=["", "not stored"])
async def test_results_on_a_socket_stay_in_the_conversation_of_the_calls(stack: Stack, is_turn: bool) -> None:
    async with client(stack) as http, dial(stack) as socket:
        conversation = (await http.post("/v1/conversations", json={})).json()["id"]
        await say(socket, type="request", request_id="r1", body={**HELLO, "conversation": conversation})
        calling = asyncio.ensure_future(call_tools(stack))
        await hear_until_terminal(socket)
        called = (await calling).response_id
        results = [{"tool_call_id": call_id(called, 0, call), "content": "12 °C"} for call in (0, 1)]
        asks = {"type": "tool_result", "response_id": called, "results": results, "idempotency_key": "k"}
        for request_id in ("r2", "again"):
            await say(socket, **asks, request_id=request_id, body={"model": "small", "store": is_turn})
            if request_id == "r2":
                answered = await stack.pipeline.answer(["Cold."])
            seen, _ = await hear_until_terminal(socket)
            assert seen[0].response_id == answered.response_id, "its key stands for it, there or elsewhere"
        told = (await http.get(f"/api/conversations/{conversation}")).json()
        ours = [called, answered.response_id] if is_turn else [called]
        assert [turn["response_id"] for turn in told["turns"]] == ours


def test_null_says_nothing_of_whether_it_is_stored() -> None:
    result = {"tool_call_id": "c", "content": ""}
    for store, stored in ((None, True), (False, False)):
        message = read_message(json.dumps({
            "type": "tool_result", "request_id": "r", "response_id": "resp_x", "results": [result],
            "body": {"model": "small", "store": store},
        }))  # fmt: skip
        assert isinstance(message, RequestMessage)
        assert message.body["store"] is stored


@pytest.mark.parametrize("name", ["messages", "previous_response_id"])
async def test_what_the_results_say_is_not_said_twice(stack: Stack, name: str) -> None:
    async with dial(stack) as socket:
        await say(
            socket, type="tool_result", request_id="r1", response_id="resp_x", body={"model": "small", name: "x"},
            results=[{"tool_call_id": "c", "content": ""}],
        )  # fmt: skip
        error = await hear(socket)
    assert isinstance(error, ErrorMessage)
    assert (error.error.code, error.error.param, error.request_id) == ("invalid_request", f"body.{name}", "r1")
