"""Conversations as OpenAI's package has them: created, asked in, gone on with, listed, deleted."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import AsyncMock

import httpx
import openai
import pytest
from openai.types.conversations import Conversation

from schemas.endings import EndingCode
from streams.gateway.service import earlier_turns
from streams.gateway.stored.memory import MemoryStoredResponses
from streams.gateway.stored.port import NewTurn
from tests.unit.streams.gateway.gateway_stack import KEY, OTHER_KEY, Stack, until
from tests.unit.streams.gateway.http_clients import HELLO, client, sdk
from tests.unit.streams.gateway.socket_clients import dial, hear_until_terminal, say
from tests.unit.streams.gateway.stored_stories import ADD, ask, ask_for_calls, completed, error_of, said

INVENTED = f"conv_{'0' * 32}"


def strict(stack: Stack, api_key: str = KEY) -> openai.AsyncOpenAI:
    """Takes no answer that is not as OpenAI's types say."""
    return openai.AsyncOpenAI(
        base_url=f"{stack.url}/v1", api_key=api_key, max_retries=0, _strict_response_validation=True
    )  # fmt: skip


@pytest.fixture
async def api(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with strict(stack) as given:
        yield given


def not_found(conversation_id: str) -> tuple[int, str, str, str | None]:
    message = f"Conversation with id '{conversation_id}' not found."
    return 404, "conversation_not_found", message, "conversation"


async def texts(api: openai.AsyncOpenAI, conversation_id: str, **query: Any) -> list[str]:
    """Of its messages, page by page."""
    told = []
    async for item in api.conversations.items.list(conversation_id, **query):
        assert item.type == "message"
        told += [part.text for part in item.content if part.type in ("input_text", "output_text")]
    return told


async def test_one_is_created_read_changed_and_deleted(api: openai.AsyncOpenAI) -> None:
    created = await api.conversations.create(metadata={"topic": "travel"})
    assert (created.object, created.metadata) == ("conversation", {"topic": "travel"})
    assert created.id.startswith("conv_")
    assert await api.conversations.retrieve(created.id) == created
    changed = await api.conversations.update(created.id, metadata={"topic": "food"})
    assert changed == Conversation(**{**created.to_dict(), "metadata": {"topic": "food"}})
    emptied = await api.conversations.update(created.id, metadata=None)
    assert emptied.metadata == {}
    deleted = await api.conversations.delete(created.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (created.id, "conversation.deleted", True)
    with pytest.raises(openai.NotFoundError):
        await api.conversations.retrieve(created.id)
    with pytest.raises(openai.NotFoundError):
        await api.conversations.delete(created.id)


async def test_turns_go_on_by_the_conversation_in_either_api(stack: Stack, api: openai.AsyncOpenAI) -> None:
    conversation = (await api.conversations.create()).id
    first, asked = await ask(stack, api, "France?", ["Paris", "."], conversation=conversation)
    assert said(asked) == [("user", "France?")]
    assert first.conversation is not None
    assert (first.conversation.id, first.previous_response_id, first.to_dict()["store"]) == (conversation, None, True)
    answering = asyncio.ensure_future(stack.pipeline.answer(["Rome", "."]))
    messages: Any = [{"role": "user", "content": "Italy?"}]
    await api.chat.completions.create(model="small", messages=messages, extra_body={"conversation": conversation})
    assert said(await answering) == [("user", "France?"), ("assistant", "Paris."), ("user", "Italy?")]
    _, asked = await ask(
        stack, api, "Spain?", ["Madrid"], conversation={"id": conversation}, instructions="Be brief."
    )  # fmt: skip
    whole = ["France?", "Paris.", "Italy?", "Rome.", "Spain?"]
    assert [text for _, text in said(asked)] == ["Be brief.", *whole]
    assert await texts(api, conversation, order="asc") == [*whole, "Madrid"]
    assert await texts(api, conversation, limit=1) == [*whole, "Madrid"][::-1]
    again = await api.responses.retrieve(first.id)
    assert again.conversation == first.conversation


async def test_a_stream_says_of_which_conversation_it_is(stack: Stack, api: openai.AsyncOpenAI) -> None:
    conversation = (await api.conversations.create()).id
    streamed, _ = await ask(stack, api, "Hi", conversation=conversation, stream=True)
    told = [event.response.conversation async for event in streamed if hasattr(event, "response")]  # type: ignore[attr-defined]
    assert len(told) >= 3
    assert {each.id for each in told} == {conversation}


async def test_what_it_begins_with_is_said_before_every_turn(stack: Stack, api: openai.AsyncOpenAI) -> None:
    items: Any = [
        {"type": "message", "role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "I am Ada."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello, Ada."}]},
    ]
    conversation = (await api.conversations.create(items=items)).id
    opening = ["Be brief.", "I am Ada.", "Hello, Ada."]
    assert await texts(api, conversation, order="asc") == opening
    _, asked = await ask(stack, api, "Who am I?", ["Ada."], conversation=conversation)
    assert said(asked) == [
        ("system", "Be brief."), ("user", "I am Ada."), ("assistant", "Hello, Ada."), ("user", "Who am I?")
    ]  # fmt: skip
    _, asked = await ask(stack, api, "Sure?", conversation=conversation)
    assert [text for _, text in said(asked)] == [*opening, "Who am I?", "Ada.", "Sure?"]


async def test_items_of_calls_are_as_their_responses_have_them(stack: Stack, api: openai.AsyncOpenAI) -> None:
    conversation = (await api.conversations.create()).id
    async with sdk(stack) as loose:
        called = await ask_for_calls(stack, loose, ['{"a": 1}'], conversation=conversation)
    [call] = [item for item in called.output if item.type == "function_call"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
    _, asked = await ask(stack, api, [result], ["Three"], conversation=conversation, tools=[ADD])
    assert [message.role for message in asked.messages] == ["user", "assistant", "tool"]
    items = [item async for item in api.conversations.items.list(conversation, order="asc")]
    assert [item.type for item in items] == ["message", "function_call", "function_call_output", "message"]
    assert items[1].id == call.id
    for item in items:
        assert item.id
        assert await api.conversations.items.retrieve(item.id, conversation_id=conversation) == item
    with pytest.raises(openai.NotFoundError):
        await api.conversations.items.retrieve("msg_x", conversation_id=conversation)


async def test_a_turn_that_names_an_earlier_one_begins_a_branch(stack: Stack, api: openai.AsyncOpenAI) -> None:
    conversation = (await api.conversations.create()).id
    first, _ = await ask(stack, api, "One", ["1"], conversation=conversation)
    await ask(stack, api, "Two", ["2"], conversation=conversation)
    await ask(stack, api, "Zwei", ["ii"], conversation=conversation, previous_response_id=first.id)
    _, asked = await ask(stack, api, "Three", ["3"], conversation=conversation)
    assert [text for _, text in said(asked)] == ["One", "1", "Zwei", "ii", "Three"]
    assert await texts(api, conversation, order="asc") == ["One", "1", "Zwei", "ii", "Three", "3"]
    elsewhere, _ = await ask(stack, api, "Alone")
    with pytest.raises(openai.NotFoundError, match="Previous response"):
        await api.responses.create(
            model="small", input="x", conversation=conversation, previous_response_id=elsewhere.id
        )  # fmt: skip
    _, asked = await ask(stack, api, "Beside", previous_response_id=first.id)
    assert "Beside" not in await texts(api, conversation), "who names a response alone asks outside of it"


async def test_an_edit_replaces_a_turn_within_its_conversation(stack: Stack, api: openai.AsyncOpenAI) -> None:
    conversation = (await api.conversations.create()).id
    first, _ = await ask(stack, api, "I am Ada.", ["Hello."], conversation=conversation)
    second, _ = await ask(stack, api, "Who am I?", ["Eve"], conversation=conversation)
    async with dial(stack) as socket:
        for replaced, text, before in (
            (second.id, "What is my name?", ["I am Ada.", "Hello."]), (first.id, "I am Bob.", [])
        ):  # fmt: skip
            body = {"model": "small", "messages": [{"role": "user", "content": text}]}
            await say(socket, type="edit", request_id=text, response_id=replaced, body=body)
            answering = asyncio.ensure_future(stack.pipeline.answer(["Fine"]))
            await hear_until_terminal(socket)
            assert [each for _, each in said(await answering)] == [*before, text]
            assert await texts(api, conversation, order="asc") == [*before, text, "Fine"]
        await say(
            socket, type="edit", request_id="x", response_id=first.id, body={**body, "conversation": conversation}
        )  # fmt: skip
        assert "body.conversation" in str(await socket.recv())


async def test_a_socket_asks_in_a_conversation_as_http_does(stack: Stack, api: openai.AsyncOpenAI) -> None:
    conversation = (await api.conversations.create()).id
    async with dial(stack) as socket:
        for text, before in (("One", []), ("Two", ["One", "1"])):
            await say(socket, type="request", request_id=text, body={
                "model": "small", "messages": [{"role": "user", "content": text}], "conversation": conversation
            })  # fmt: skip
            answering = asyncio.ensure_future(stack.pipeline.answer(["1"]))
            await hear_until_terminal(socket)
            assert [each for _, each in said(await answering)] == [*before, text]


@pytest.mark.parametrize("started", [False, True], ids=["refused", "failed before a word"])
async def test_a_turn_that_came_to_nothing_is_not_gone_on_with(
    stack: Stack, api: openai.AsyncOpenAI, stored: MemoryStoredResponses, monkeypatch: pytest.MonkeyPatch, started: bool
) -> None:
    conversation = (await api.conversations.create()).id
    await ask(stack, api, "One", ["1"], conversation=conversation)
    monkeypatch.setattr(stored, "drop", AsyncMock())
    failing = asyncio.ensure_future(api.responses.create(model="small", input="Two", conversation=conversation))
    request = await stack.pipeline.next_request()
    if started:
        stack.pipeline.start(request)
    stack.pipeline.end(request, 1, EndingCode.OVERLOADED)
    with pytest.raises(openai.APIStatusError):
        await failing
    _, asked = await ask(stack, api, "Two", ["2"], conversation=conversation)
    assert [text for _, text in said(asked)] == ["One", "1", "Two"]


async def test_what_a_turn_has_said_before_it_failed_is_gone_on_with(stack: Stack, api: openai.AsyncOpenAI) -> None:
    conversation = (await api.conversations.create()).id
    failing = asyncio.ensure_future(api.responses.create(model="small", input="One", conversation=conversation))
    await stack.pipeline.ends(EndingCode.GENERATION_INTERRUPTED, "Un")
    with pytest.raises(openai.APIStatusError):
        await failing
    _, asked = await ask(stack, api, "Go on", conversation=conversation)
    assert [text for _, text in said(asked)] == ["One", "Un", "Go on"]


async def test_while_its_last_turn_runs_another_one_is_told_so(stack: Stack, api: openai.AsyncOpenAI) -> None:
    conversation = (await api.conversations.create()).id
    running = asyncio.ensure_future(api.responses.create(model="small", input="One", conversation=conversation))
    request = await stack.pipeline.next_request()
    stack.pipeline.start(request)
    stack.pipeline.release(request, 1, ["1"])
    stream = stack.runtime.hub.get(request.response_id)
    assert stream is not None
    await until(lambda: stream.next_sequence == 2, "it is read")
    async with client(stack) as http:
        body = {"model": "small", "input": "Two", "conversation": conversation}
        refused = await http.post("/v1/responses", json=body)
    assert error_of(refused)[:2] == (409, "conversation_in_progress")
    assert int(refused.headers["retry-after-ms"]) > 0
    stack.pipeline.end(request, 2)
    await running
    _, asked = await ask(stack, api, "Two", conversation=conversation)
    assert [text for _, text in said(asked)] == ["One", "1", "Two"]


def in_one_moment(stored: MemoryStoredResponses, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two requests each has found what it goes on with before the other one is written."""
    both, opened = asyncio.Barrier(2), stored.open

    async def open_together(turn: NewTurn) -> None:
        async with both:
            monkeypatch.setattr(stored, "open", opened)
        await opened(turn)

    monkeypatch.setattr(stored, "open", open_together)


@pytest.mark.parametrize("keyed", [False, True], ids=["", "with keys"])
async def test_of_two_in_one_moment_one_is_the_next_turn(
    stack: Stack, api: openai.AsyncOpenAI, stored: MemoryStoredResponses, monkeypatch: pytest.MonkeyPatch, keyed: bool
) -> None:
    conversation = (await api.conversations.create()).id
    await ask(stack, api, "One", ["1"], conversation=conversation)
    before = len(stack.pipeline.requests())
    in_one_moment(stored, monkeypatch)
    async with client(stack) as http:

        async def post(text: str) -> httpx.Response:
            headers = {"idempotency-key": text} if keyed else {}
            body = {"model": "small", "input": text, "conversation": conversation}
            return await http.post("/v1/responses", json=body, headers=headers)

        asking = {text: asyncio.ensure_future(post(text)) for text in ("Two", "Zwei")}
        request = await stack.pipeline.next_request()
        [_, _, (_, text)] = said(request)
        other = "Zwei" if text == "Two" else "Two"
        refused = await asking[other]
        status, code, _, param = error_of(refused)
        assert (status, code, param) == (409, "conversation_in_progress", "conversation")
        assert int(refused.headers["retry-after-ms"]) > 0
        assert len(stack.pipeline.requests()) == before + 1, "the log has nothing of it"
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["2"])
        stack.pipeline.end(request, 2)
        assert (await asking[text]).status_code == 200
        again = asyncio.ensure_future(post(other))
        assert [each for _, each in said(await stack.pipeline.answer(["3"]))] == ["One", "1", text, "2", other]
        assert (await again).status_code == 200, "nor does its key stand for anything"


async def test_a_branch_begins_though_another_turn_begins_in_that_moment(
    stack: Stack, api: openai.AsyncOpenAI, stored: MemoryStoredResponses, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = (await api.conversations.create()).id
    first, _ = await ask(stack, api, "One", ["1"], conversation=conversation)
    in_one_moment(stored, monkeypatch)
    named: Any = {"conversation": conversation, "previous_response_id": first.id}
    both = asyncio.gather(*(api.responses.create(model="small", input=text, **named) for text in ("Two", "Zwei")))
    for _ in range(2):
        await stack.pipeline.answer(["2"])
    assert {each.previous_response_id for each in await both} == {first.id}


async def test_a_newest_turn_that_is_dropped_meanwhile_is_passed_over(
    stack: Stack, api: openai.AsyncOpenAI, stored: MemoryStoredResponses, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = (await api.conversations.create()).id
    kept, _ = await ask(stack, api, "One", ["1"], conversation=conversation)
    refused = stack.settings.response_ids.mint(0)
    await stored.open(NewTurn(refused, "acme", kept.id, 0, 2**53, 2**53, b"[]", conversation))
    chain = stored.chain

    async def dropped_before(*args: Any, **more: Any) -> Any:
        await stored.drop([refused])
        return await chain(*args, **more)

    monkeypatch.setattr(stored, "chain", dropped_before)
    _, asked = await ask(stack, api, "Two", ["2"], conversation=conversation)
    assert [text for _, text in said(asked)] == ["One", "1", "Two"]


async def test_a_foreign_and_an_invented_id_are_one_404(stack: Stack, api: openai.AsyncOpenAI) -> None:
    own = (await api.conversations.create()).id
    for conversation, authorization in ((own, OTHER_KEY), (INVENTED, KEY), ("conv_x", KEY), ("resp_x", KEY)):
        async with client(stack, authorization=f"Bearer {authorization}") as http:
            answers = [
                await http.get(f"/v1/conversations/{conversation}"),
                await http.post(f"/v1/conversations/{conversation}", json={"metadata": {}}),
                await http.delete(f"/v1/conversations/{conversation}"),
                await http.get(f"/v1/conversations/{conversation}/items"),
                await http.get(f"/v1/conversations/{conversation}/items/msg_x"),
                await http.get(f"/api/conversations/{conversation}"),
                await http.post(f"/api/conversations/{conversation}", json={"title": "x"}),
                await http.delete(f"/api/conversations/{conversation}"),
                await http.get(f"/api/conversations?after={conversation}"),
                await http.post("/v1/chat/completions", json={**HELLO, "conversation": conversation}),
                await http.post(
                    "/v1/responses", json={"model": "small", "input": "x", "conversation": {"id": conversation}}
                ),
            ]
        assert {error_of(answer) for answer in answers} == {not_found(conversation)}
    assert stack.pipeline.requests() == []
    assert await api.conversations.retrieve(own)


async def test_with_a_deleted_one_its_turns_are_gone_on_every_way(
    stack: Stack, api: openai.AsyncOpenAI, stored: MemoryStoredResponses
) -> None:
    conversation = (await api.conversations.create()).id
    turn, _ = await ask(stack, api, "One", conversation=conversation)
    await completed(stored)
    await api.conversations.delete(conversation)
    async with client(stack) as http:
        for answer in (
            await http.get(f"/v1/responses/{turn.id}"),
            await http.get(f"/v1/chat/completions/{turn.id}?stream=true"),
            await http.get(f"/v1/responses/{turn.id}/input_items"),
            await http.post("/v1/responses", json={**HELLO, "input": "x", "previous_response_id": turn.id}),
        ):
            assert answer.status_code == 404 or answer.json()["error"]["code"] == "unsupported_parameter"
        refused = await http.post("/v1/responses", json={"model": "small", "input": "x", "conversation": conversation})
    assert error_of(refused) == not_found(conversation)


async def test_what_cannot_be_is_refused_by_name(stack: Stack) -> None:
    async with client(stack) as http:
        for body, code, param in (
            ({"conversation": 1}, "invalid_request", "conversation"),
            ({"conversation": {"id": ""}}, "invalid_request", "conversation.id"),
            ({"conversation": {"id": "conv_1", "x": 1}}, "unsupported_parameter", "conversation.x"),
            ({"conversation": INVENTED, "store": False}, "invalid_request", "store"),
        ):
            for path, own in (("responses", {"model": "small", "input": "x"}), ("chat/completions", HELLO)):
                refused = error_of(await http.post(f"/v1/{path}", json={**own, **body}))
                assert (refused[0], refused[1], refused[3]) == (400, code, param)
        bodies: tuple[tuple[str, dict[str, Any], str], ...] = (
            ("/v1/conversations", {"items": [{"type": "item_reference", "id": "x"}]}, "items[0].type"),
            ("/v1/conversations", {"items": [{"role": "user", "content": "x"}] * 21}, "items"),
            ("/v1/conversations", {"items": [{"role": "user", "content": "x" * 300_000}]}, "items"),
            ("/v1/conversations", {"metadata": {"a": "x" * 513}}, "metadata.a"),
            ("/v1/conversations", {"title": "x"}, "title"),
            ("/api/conversations", {"title": "x" * 201}, "title"),
            ("/api/conversations", {"items": []}, "items"),
        )
        for path, content, param in bodies:
            refused = error_of(await http.post(path, json=content))
            assert (refused[0], refused[3]) == (400, param)


async def test_one_beyond_a_requests_bounds_is_too_long_as_clients_know_it(
    stack: Stack, api: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = (await api.conversations.create()).id
    for text in ("One", "Two"):
        await ask(stack, api, text, conversation=conversation)
    monkeypatch.setattr(earlier_turns, "MAX_TURNS", 1)
    with pytest.raises(openai.BadRequestError) as refused:
        await api.responses.create(model="small", input="Three", conversation=conversation)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "conversation")


async def test_while_the_database_is_away_conversations_are_503_and_other_work_flows(
    stack: Stack, api: openai.AsyncOpenAI, stored: MemoryStoredResponses
) -> None:
    conversation = (await api.conversations.create()).id
    stored.is_away = True
    async with client(stack) as http:
        answers: list[httpx.Response] = [
            await http.post("/v1/conversations", json={}),
            await http.get(f"/v1/conversations/{conversation}"),
            await http.get("/api/conversations"),
            await http.post("/v1/responses", json={"model": "small", "input": "x", "conversation": conversation}),
        ]
    assert {(answer.status_code, "retry-after" in answer.headers) for answer in answers} == {(503, True)}
    await ask(stack, api, "Hi", store=False)
