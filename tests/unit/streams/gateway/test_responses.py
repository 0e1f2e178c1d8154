"""OpenAI's own package over the Responses API: asked, streamed, queued, come back to, cancelled."""

import asyncio
import json
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from schemas.endings import EndingCode
from schemas.request import Request
from streams.dialects.responses.numbering import number_of
from tests.unit.streams.gateway.gateway_stack import (
    OTHER_KEY,
    Stack,
    gateway_settings,
    memory_log,
    serving,
    terminal,
    until,
)
from tests.unit.streams.gateway.http_clients import client, events_of, sdk, text_of

HELLO: dict[str, Any] = {"model": "small", "input": "Hello"}
EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
PARIS = ("Par", "is", ".")
LIMITS = {"requests_limit": 10, "requests_remaining": 0, "requests_reset_ms": 1500}


async def left_memory(stack: Stack, request: Request) -> None:
    await until(lambda: stack.runtime.hub.get(request.response_id) is None, "it left memory")


async def test_openais_package_gets_a_whole_response(stack: Stack) -> None:
    async with sdk(stack) as api:
        answering = asyncio.ensure_future(stack.pipeline.answer(PARIS))
        response = await api.responses.create(
            model="small", input="Capital of France?", instructions="Be brief.", metadata={"a": "b"}, user="ann"
        )
    request = await answering
    assert (response.id, response.status, response.output_text) == (request.response_id, "completed", "Paris.")
    assert (response.model, response.instructions, response.metadata) == ("tiny", "Be brief.", {"a": "b"})
    assert (request.endpoint, request.on_disconnect) == ("responses", "cancel")
    assert [message.role for message in request.messages] == ["system", "user"]
    assert "ann" not in request.model_dump_json().replace(request.response_id, "")


async def test_openais_package_streams_a_response(stack: Stack) -> None:
    async with sdk(stack) as api:
        answering = asyncio.ensure_future(stack.pipeline.answer(PARIS))
        async with api.responses.stream(model="small", input="Capital of France?") as stream:
            deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            whole = await stream.get_final_response()
    request = await answering
    assert ("".join(deltas), whole.output_text, whole.id) == ("Paris.", "Paris.", request.response_id)


async def test_who_had_a_response_gets_the_same_by_its_id(stack: Stack) -> None:
    async with sdk(stack) as api:
        answering = asyncio.ensure_future(stack.pipeline.answer(PARIS))
        created = await api.responses.create(model="small", input="Hi", instructions="Be brief.", temperature=0.5)
        request = await answering
        await left_memory(stack, request)
        again = await api.responses.retrieve(created.id)
    assert again == created


async def test_reasoning_is_an_item_before_the_message(stack: Stack) -> None:
    async def think() -> None:
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.say(request, 1, "reasoning", "Hm", ".")
        stack.pipeline.say(request, 3, "content", "Paris")
        stack.pipeline.end(request, 4)

    async with sdk(stack) as api:
        thinking = asyncio.ensure_future(think())
        response = await api.responses.create(model="small", input="Hi")
        await thinking
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.output_text == "Paris"


class Person(BaseModel):
    name: str


async def test_openais_package_parses_an_answer_that_is_bound_to_a_schema(stack: Stack) -> None:
    async with sdk(stack) as api:
        answering = asyncio.ensure_future(stack.pipeline.answer(['{"name"', ':"Ann"}']))
        response = await api.responses.parse(model="small", input="Who?", text_format=Person)
        request = await answering
    assert response.output_parsed == Person(name="Ann")
    structure = request.sampling.structured_outputs
    assert structure is not None
    assert structure.json_schema is not None
    assert structure.json_schema["properties"]["name"]["type"] == "string"


ADD = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}


async def test_calls_are_items_whose_results_go_back_to_the_model(stack: Stack) -> None:
    async def call() -> None:
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        for number, first in ((0, 1), (1, 4)):
            stack.pipeline.say(request, first, "tool_name", "a", "dd", call=number)
            stack.pipeline.say(request, first + 2, "tool_arguments", f'{{"a": {number}}}', call=number)
        stack.pipeline.end(request, 7)

    async with sdk(stack) as api:
        calling = asyncio.ensure_future(call())
        asked: list[Any] = [{"role": "user", "content": "Add."}]
        async with api.responses.stream(model="small", input=asked, tools=[ADD]) as stream:  # type: ignore[list-item]
            whole = await stream.get_final_response()
        await calling
        calls = [item for item in whole.output if item.type == "function_call"]
        assert [(item.name, item.arguments) for item in calls] == [("add", '{"a": 0}'), ("add", '{"a": 1}')]
        again = await api.responses.retrieve(whole.id)
        assert [item.to_dict()["id"] for item in again.output] == [item.to_dict()["id"] for item in whole.output]
        assert again.tools[0].to_dict() == {**ADD, "description": ""}
        results = [{"type": "function_call_output", "call_id": item.call_id, "output": "3"} for item in calls]
        answering = asyncio.ensure_future(stack.pipeline.answer(PARIS))
        told = [item.to_dict() for item in again.output]
        await api.responses.create(model="small", input=[*asked, *told, *results], tools=[ADD])  # type: ignore[list-item]
        request = await answering
    assert [message.role for message in request.messages] == ["user", "assistant", "tool", "tool"]
    assert [call.id for call in request.messages[1].tool_calls] == [item.call_id for item in calls]


async def test_a_background_response_is_answered_at_once_and_had_later(stack: Stack) -> None:
    async with sdk(stack) as api:
        asking = asyncio.ensure_future(api.responses.create(model="small", input="Hi", background=True))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        queued = await asking
        assert (queued.id, queued.status, queued.background) == (request.response_id, "queued", True)
        await until(lambda: stack.runtime.hub.viewers == 0, "nobody watches")
        stack.pipeline.release(request, 1, ["Par"])
        await until(lambda: stack.runtime.hub.released_tokens == 1, "it runs")
        running = await api.responses.retrieve(queued.id)
        assert (running.status, running.output_text, running.usage) == ("in_progress", "Par", None)
        stack.pipeline.end(request, 2)
        await until(lambda: stack.runtime.hub.has_ended(request.response_id), "it ends")
        ended = await api.responses.retrieve(queued.id)
    assert (ended.status, ended.output_text, ended.background) == ("completed", "Par", True)
    assert (request.on_disconnect, stack.pipeline.cancels()) == ("continue", [])


async def test_a_background_response_that_nobody_admits_in_time_waits(redis_url: str) -> None:
    settings = gateway_settings(redis_url, "slowbackground", admission_timeout_ms=50)
    async with serving(settings, memory_log(settings)) as stack, sdk(stack) as api:
        queued = await api.responses.create(model="small", input="Hi", background=True)
        assert (queued.status, queued.background, queued.model) == ("queued", True, "small")
        assert stack.pipeline.cancels() == []
        streaming = asyncio.ensure_future(api.responses.create(model="small", input="Hi", background=True, stream=True))
        await stack.pipeline.next_request()
        request = await stack.pipeline.next_request()
        stream = await streaming
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["a"])
        stack.pipeline.end(request, 2)
        types = [event.type async for event in stream]
        assert types[:3] == ["response.created", "response.queued", "response.in_progress"]
        assert (types[-1], stack.pipeline.cancels()) == ("response.completed", [])


async def test_a_refusal_is_a_real_status_also_in_the_background(stack: Stack) -> None:
    async with sdk(stack) as api:
        for background in (False, True):
            for code, kind in (
                (EndingCode.MODEL_NOT_FOUND, openai.NotFoundError),
                (EndingCode.CONTEXT_LENGTH_EXCEEDED, openai.BadRequestError),
                (EndingCode.RATE_LIMITED_REQUESTS, openai.RateLimitError),
            ):
                refusing = asyncio.ensure_future(stack.pipeline.ends(code, param="model", limits=LIMITS))
                with pytest.raises(kind) as error:
                    await api.responses.create(model="small", input="Hi", background=background)
                await refusing
                assert (error.value.code, error.value.param) == (code.value, "model")
                assert error.value.response.headers["x-ratelimit-limit-requests"] == "10"


@pytest.mark.usefixtures("leases_of_a_second")
async def test_a_viewer_that_leaves_ends_what_is_not_in_the_background(stack: Stack) -> None:
    async with sdk(stack) as api:
        for background in (True, False):
            asking = asyncio.ensure_future(
                api.responses.create(model="small", input="Hi", stream=True, background=background)
            )
            request = await stack.pipeline.next_request()
            stack.pipeline.start(request)
            stream = await asking
            await stream.close()
            await until(lambda: stack.runtime.hub.viewers == 0, "it has left")
            if background:
                await asyncio.sleep(0.2)
                assert stack.pipeline.cancels() == []
        await until(stack.pipeline.cancels, "the other one is cancelled")
        assert [cancel.response_id for cancel in stack.pipeline.cancels()] == [request.response_id]


async def events_after(stack: Stack, response_id: str, after: int | None) -> list[dict[str, Any]]:
    position = "" if after is None else f"&starting_after={after}"
    async with client(stack) as http:
        told = await http.get(f"/v1/responses/{response_id}?stream=true{position}")
    events = [json.loads(data) for _, data in events_of(told.text)]
    for event in events:
        EVENT.validate_python(event, strict=True)
    return events


def content_of(events: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """All events but the deltas, whose grouping may differ, and what the deltas say."""
    deltas = [event for event in events if "delta" in event]
    return [event for event in events if "delta" not in event], "".join(event["delta"] for event in deltas)


@pytest.mark.parametrize("where", ["memory", "history"])
async def test_from_every_event_the_rest_is_told_as_it_was(stack: Stack, where: str) -> None:
    request = await said_in_parts(stack)
    if where == "history":
        await left_memory(stack, request)
    events = await events_after(stack, request.response_id, None)
    assert events[0]["type"] == "response.created"
    for i, event in enumerate(events[:-1]):
        rest = await events_after(stack, request.response_id, event["sequence_number"])
        assert content_of(events[: i + 1] + rest) == content_of(events), event
    async with client(stack) as http:
        path = f"/v1/responses/{request.response_id}?stream=true"
        last = events[-1]["sequence_number"]
        assert (await http.get(f"{path}&starting_after={last}")).status_code == 204
        beyond = await http.get(f"{path}&starting_after={number_of(7, 5)}")
        assert (beyond.status_code, beyond.json()["error"]["param"]) == (400, "starting_after")


async def test_an_answer_that_was_cut_off_is_incomplete_in_every_shape(stack: Stack) -> None:
    request_id = await said_to_its_bound(stack)
    async with client(stack) as http:
        whole = (await http.get(f"/v1/responses/{request_id}")).json()
        chat = (await http.get(f"/v1/chat/completions/{request_id}")).json()
        message = (await http.get(f"/v1/messages/{request_id}")).json()
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (chat["status"], chat["choices"][0]["finish_reason"]) == ("incomplete", "length")
    assert (message["status"], message["stop_reason"]) == ("incomplete", "max_tokens")


async def said_to_its_bound(stack: Stack) -> str:
    async with client(stack) as http:
        asking = asyncio.ensure_future(http.post("/v1/responses", json={**HELLO, "max_output_tokens": 1}))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["a"])
        record = terminal(request.response_id, request.scope, 2)
        stack.pipeline.write(request.response_id, record.model_copy(update={"finish_reasons": ["length"]}))
        await asking
    return request.response_id


async def said_in_parts(stack: Stack) -> Request:
    """Five tokens in two items. It has ended."""
    async with client(stack) as http:
        asking = asyncio.ensure_future(http.post("/v1/responses", json=HELLO))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.say(request, 1, "reasoning", "Hm", ".")
        stack.pipeline.say(request, 3, "content", "Once")
        stack.pipeline.say(request, 4, "content", " upon", " a time")
        stack.pipeline.end(request, 6)
        assert (await asking).status_code == 200
    return request


async def test_who_comes_back_in_the_middle_of_a_running_response_is_told_what_it_lacks(stack: Stack) -> None:
    async with sdk(stack) as api:
        asking = asyncio.ensure_future(api.responses.create(**HELLO, stream=True))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["one ", "two "])
        await until(lambda: (s := stack.runtime.hub.get(request.response_id)) and s.trimmed, "it is in history")
        stack.pipeline.release(request, 3, ["three "])
        # It saw the first token and no more, as if it had come alone.
        again = await api.responses.retrieve(request.response_id, stream=True, starting_after=number_of(1, 5))
        stack.pipeline.release(request, 4, ["four"])
        stack.pipeline.end(request, 5)
        events = [event async for event in again]
        first = [event async for event in await asking]
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "two three four"
    assert [e.text for e in events if e.type == "response.output_text.done"] == ["one two three four"]
    assert events[-1] == first[-1]
    assert [e.type for e in events[-4:]] == [e.type for e in first[-4:]]


async def test_a_position_that_may_yet_be_known_is_not_refused_for_good(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack.runtime.gateway._patience, "_patience_ms", 100)
    response_id = stack.settings.response_ids.mint(0)
    async with client(stack) as http:
        answer = await http.get(f"/v1/responses/{response_id}?stream=true&starting_after={number_of(3, 5)}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_here_yet")


async def test_every_path_takes_every_id_and_tells_it_in_its_own_shape(stack: Stack) -> None:
    async with client(stack) as http:
        for path, body in (
            ("/v1/chat/completions", {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}),
            ("/v1/responses", HELLO),
        ):
            answering = asyncio.ensure_future(stack.pipeline.answer(PARIS))
            await http.post(path, json=body)
            request = await answering
            whole = Response.model_validate(
                (await http.get(f"/v1/responses/{request.response_id}")).json(), strict=True
            )
            assert (whole.output_text, whole.status) == ("Paris.", "completed")
            chat = (await http.get(f"/v1/chat/completions/{request.response_id}")).json()
            assert (chat["object"], chat["choices"][0]["message"]["content"]) == ("chat.completion", "Paris.")
            chunks = await http.get(f"/v1/chat/completions/{request.response_id}?stream=true&starting_after=1")
            assert text_of(events_of(chunks.text)) == "is."
            events = await events_after(stack, request.response_id, number_of(1, 5))
            assert "".join(event.get("delta", "") for event in events) == "is."


async def test_a_cancel_waits_a_moment_for_the_end_and_changes_none(stack: Stack) -> None:
    async def end() -> None:
        await until(stack.pipeline.cancels, "it is to be cancelled")
        stack.pipeline.end(request, 2, EndingCode.CANCELLED)

    async with sdk(stack) as api:
        asking = asyncio.ensure_future(api.responses.create(model="small", input="Hi", background=True))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["a"])
        response = await asking
        ending = asyncio.ensure_future(end())
        cancelled = await api.responses.cancel(response.id)
        await ending
        again = await api.responses.cancel(response.id)
    assert (cancelled.status, cancelled.output_text) == ("cancelled", "a")
    assert again == cancelled
    assert len(stack.pipeline.cancels()) == 1


async def test_a_gateway_that_stops_says_so_in_an_event(stack: Stack) -> None:
    async def begin() -> None:
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["one"])

    async with client(stack) as http:
        beginning = asyncio.ensure_future(begin())
        async with http.stream("POST", "/v1/responses", json={**HELLO, "stream": True}) as answer:
            told = answer.aiter_text()
            text = await anext(told)
            while '"delta":"one"' not in text:
                text += await anext(told)
            await beginning
            await stack.runtime.gateway.stop()
            text += "".join([part async for part in told])
        last = EVENT.validate_json(events_of(text)[-1][1], strict=True)
    assert (last.type, last.code) == ("error", "going_away")  # type: ignore[union-attr]
    assert last.sequence_number == number_of(1, 7)


async def test_browsers_get_the_numbers_as_ids(stack: Stack) -> None:
    request = await said_in_parts(stack)
    async with client(stack, accept="text/event-stream") as http:
        path = f"/v1/responses/{request.response_id}?stream=true"
        events = events_of((await http.get(path)).text)
        assert [int(number or "") for number, _ in events] == [
            json.loads(data)["sequence_number"] for _, data in events
        ]
        after = {"last-event-id": events[4][0] or ""}
        rest = events_of((await http.get(path, headers=after)).text)
        assert [data for _, data in rest if '"delta"' not in data] == [
            data for _, data in events[5:] if '"delta"' not in data
        ]


async def test_what_is_refused_names_the_field_and_reaches_no_topic(stack: Stack) -> None:
    async with client(stack) as http:
        for more, code, param in (
            ({"prompt": {"id": "p"}}, "unsupported_parameter", "prompt"),
            ({"input": [{"role": "poet", "content": ""}]}, "invalid_request", "input[0].role"),
        ):
            refused = await http.post("/v1/responses", json={**HELLO, **more})
            assert refused.status_code == 400
            assert (refused.json()["error"]["code"], refused.json()["error"]["param"]) == (code, param)
    assert stack.pipeline.requests() == []


async def test_another_tenants_response_is_unknown(stack: Stack) -> None:
    request = await said_in_parts(stack)
    stranger = {"authorization": f"Bearer {OTHER_KEY}"}
    async with client(stack) as http:
        for method, path in (("GET", ""), ("GET", "?stream=true&starting_after=5"), ("POST", "/cancel")):
            answered = await http.request(method, f"/v1/responses/{request.response_id}{path}", headers=stranger)
            assert answered.status_code == 404
