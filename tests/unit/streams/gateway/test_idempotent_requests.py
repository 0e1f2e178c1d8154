"""Requests with an `Idempotency-Key`: answered once, however often they come."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection

from schemas.endings import ENDINGS, EndingCode
from schemas.request import Request
from schemas.websocket import Accepted, ErrorMessage
from streams.gateway.idempotency.memory import MemoryIdempotencyKeys
from streams.gateway.idempotency.port import Claim
from streams.gateway.idempotency.tending import TendedKeys
from streams.settings import MetadataSettings, Settings
from tests.unit.streams.gateway.gateway_stack import (
    OTHER_KEY,
    Stack,
    gateway_settings,
    memory_log,
    serving,
    until,
)
from tests.unit.streams.gateway.http_clients import HELLO, client, events_of, sdk, text_of
from tests.unit.streams.gateway.messages_clients import HELLO as MESSAGE
from tests.unit.streams.gateway.socket_clients import dial, hear, hear_until_terminal, say
from tests.unit.streams.gateway.stored_stories import completed, error_of
from tests.unit.streams.gateway.test_responses import HELLO as RESPONSE

CHATS = "/v1/chat/completions"
STREAMED = {**HELLO, "stream": True}
KEYED = {"idempotency-key": "order 66"}
EACH = {
    CHATS: HELLO,
    "/v1/completions": {"model": "tiny", "prompt": "x"},
    "/v1/responses": RESPONSE,
    "/v1/messages": MESSAGE,
}


def keyed(stack: Stack, **headers: str) -> httpx.AsyncClient:
    return client(stack, **KEYED, **headers)


async def answered(stack: Stack, http: httpx.AsyncClient, path: str = CHATS, **body: Any) -> httpx.Response:
    """What the pipeline answers."""
    answering = asyncio.ensure_future(stack.pipeline.answer(["Par", "is"]))
    answer = await http.post(path, json={**EACH[path], **body})
    await answering
    return answer


@pytest.mark.parametrize("path", EACH)
async def test_who_comes_again_is_given_the_same_answer_whole_or_streamed(stack: Stack, path: str) -> None:
    async with keyed(stack) as http:
        first = await answered(stack, http, path)
        again = await http.post(path, json=EACH[path])
        streamed = await http.post(path, json={**EACH[path], "stream": True})
        assert (first.status_code, again.json()) == (200, first.json())
        assert streamed.headers["content-type"].startswith("text/event-stream")
        assert {each.headers["x-request-id"] for each in (first, again, streamed)} == {first.json()["id"]}
        told = "".join(data for _, data in events_of(streamed.text))
        assert "Par" in told
        assert "is" in told
    assert len(stack.pipeline.requests()) == 1


async def test_vectors_are_given_again_too(stack: Stack) -> None:
    body = {"model": "small", "input": ["a"]}

    async def embed() -> None:
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.say(request, 1, "embedding", "AACAPw==")
        stack.pipeline.end(request, 2)

    async with keyed(stack) as http:
        embedding = asyncio.ensure_future(embed())
        first = await http.post("/v1/embeddings", json=body)
        await embedding
        again = await http.post("/v1/embeddings", json=body)
    assert (first.status_code, again.content) == (200, first.content)
    assert len(stack.pipeline.requests()) == 1


async def test_who_lost_its_connection_joins_the_running_stream_from_its_first_token(stack: Stack) -> None:
    async with keyed(stack) as http:
        lost = asyncio.ensure_future(http.post(CHATS, json=STREAMED))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["Par"])
        await until(lambda: stack.runtime.hub.delivered_tokens == 1, "the first token has left")
        lost.cancel()
        await until(lambda: not stack.runtime.hub.viewers, "its client has gone")
        joining = [asyncio.ensure_future(http.post(CHATS, json=body)) for body in (STREAMED, HELLO)]
        await until(lambda: stack.runtime.hub.viewers == 2, "it is back, twice")
        stack.pipeline.release(request, 2, ["is"])
        stack.pipeline.end(request, 3)
        streamed, whole = await asyncio.gather(*joining)
    assert text_of(events_of(streamed.text)) == "Paris"
    assert whole.json()["choices"][0]["message"]["content"] == "Paris"
    assert (request.on_disconnect, stack.pipeline.cancels()) == ("continue", [])
    assert len(stack.pipeline.requests()) == 1


async def test_two_that_come_at_once_are_answered_by_one(stack: Stack) -> None:
    async with keyed(stack) as http:
        asking = [asyncio.ensure_future(http.post(CHATS, json=HELLO)) for _ in range(5)]
        await stack.pipeline.answer(["Par", "is"])
        told = [answer.json() for answer in await asyncio.gather(*asking)]
    assert told == [told[0]] * 5
    assert len(stack.pipeline.requests()) == 1


async def test_who_says_what_becomes_of_it_without_viewers_is_heard(stack: Stack) -> None:
    async with keyed(stack) as http:
        await answered(stack, http, on_disconnect="cancel")
    assert stack.pipeline.requests()[0].on_disconnect == "cancel"


@pytest.mark.parametrize(
    ("path", "body"),
    [(CHATS, {**HELLO, "temperature": 0.5}), ("/v1/completions", HELLO), ("/v1/messages", {**MESSAGE, **HELLO})],
)
async def test_a_key_is_of_one_request(stack: Stack, path: str, body: dict[str, Any]) -> None:
    """Also while that runs, and of another format: where the body is the same, the answer would not be."""
    body = {"model": "small", "prompt": "x"} if path == "/v1/completions" else body
    async with keyed(stack) as http:
        asking = asyncio.ensure_future(http.post(CHATS, json=HELLO))
        request = await stack.pipeline.next_request()
        for _ in range(2):
            refused = await http.post(path, json=body)
            error = refused.json()["error"]
            assert (refused.status_code, error["code"]) == (409, "idempotency_key_reused")
            assert (error["param"], refused.headers["x-should-retry"]) == ("Idempotency-Key", "false")
            assert ("type" in refused.json()) == (path == "/v1/messages"), "in the dialect's own shape"
            if not asking.done():
                stack.pipeline.end(request, 1)
                await asking
    assert len(stack.pipeline.requests()) == 1


async def test_the_path_that_open_webui_asks_is_that_of_chats(stack: Stack) -> None:
    async with keyed(stack) as http:
        first = await answered(stack, http)
        assert (await http.post("/api/chat/completions", json=HELLO)).json() == first.json()


async def test_another_tenant_s_key_is_another_key(stack: Stack) -> None:
    async with keyed(stack) as http, keyed(stack, authorization=f"Bearer {OTHER_KEY}") as other:
        first, second = await answered(stack, http), await answered(stack, other)
    assert first.json()["id"] != second.json()["id"]
    assert {request.scope.tenant_id for request in stack.pipeline.requests()} == {"acme", "beta"}


@pytest.mark.parametrize("code", EndingCode)
async def test_what_may_be_asked_again_is_generated_again_and_nothing_else(stack: Stack, code: EndingCode) -> None:
    async with keyed(stack) as http:
        ending = asyncio.ensure_future(stack.pipeline.ends(code, retry_after_ms=1))
        first = await http.post(CHATS, json=HELLO)
        refused = await ending
        assert first.status_code == ENDINGS[code].status
        if ENDINGS[code].retryable:
            again = await answered(stack, http)
            assert again.status_code == 200
            assert again.json()["id"] != refused.response_id
            assert (await http.post(CHATS, json=HELLO)).json() == again.json()
            other = await http.post(CHATS, json={**HELLO, "temperature": 0.5})
            assert other.status_code == 409, "the key keeps its request"
        else:
            again = await http.post(CHATS, json=HELLO)
            assert again.status_code == first.status_code
            assert again.headers["x-request-id"] == refused.response_id
    assert len(stack.pipeline.requests()) == (2 if ENDINGS[code].retryable else 1)


async def test_of_several_that_come_again_after_a_refusal_one_begins_anew(stack: Stack) -> None:
    async with keyed(stack) as http:
        ending = asyncio.ensure_future(stack.pipeline.ends(EndingCode.OVERLOADED, retry_after_ms=1))
        assert (await http.post(CHATS, json=HELLO)).status_code == 503
        await ending
        asking = [asyncio.ensure_future(http.post(CHATS, json=HELLO)) for _ in range(3)]
        await stack.pipeline.answer(["Par", "is"])
        assert len({answer.json()["id"] for answer in await asyncio.gather(*asking)}) == 1
    assert len(stack.pipeline.requests()) == 2


async def test_openais_package_asks_again_by_itself_with_the_key_that_it_was_given(stack: Stack) -> None:
    async def refuse_then_answer() -> Request:
        await stack.pipeline.ends(EndingCode.OVERLOADED, retry_after_ms=1)
        return await stack.pipeline.answer(["Par", "is"])

    async with sdk(stack, max_retries=1) as api:
        answering = asyncio.ensure_future(refuse_then_answer())
        messages: Any = HELLO["messages"]
        told = [
            await api.chat.completions.create(model="small", messages=messages, extra_headers=KEYED) for _ in range(2)
        ]
        request = await answering
    assert [each.id for each in told] == [request.response_id] * 2


@pytest.mark.parametrize("key", ["", "x" * 256, "ü", "a\tb"])
async def test_a_key_is_printable_ascii_of_bounded_length(stack: Stack, key: str) -> None:
    async with client(stack) as http:
        headers: Any = {b"idempotency-key": key.encode("latin-1")}
        refused = await http.post(CHATS, json=HELLO, headers=headers)
        assert (error_of(refused)[:2], error_of(refused)[3]) == ((400, "invalid_request"), "Idempotency-Key")
        twice = await http.post(CHATS, json=HELLO, headers=[("Idempotency-Key", "a"), ("Idempotency-Key", "b")])
        assert twice.status_code == 400
    assert stack.pipeline.requests() == []


async def test_a_key_of_255_characters_is_one(stack: Stack) -> None:
    async with client(stack, **{"idempotency-key": "~" * 255}) as http:
        first = await answered(stack, http)
        assert (await http.post(CHATS, json=HELLO)).json() == first.json()


async def test_a_body_that_is_no_request_takes_no_key(stack: Stack) -> None:
    async with keyed(stack) as http:
        assert (await http.post(CHATS, json={**HELLO, "messages": []})).status_code == 400
        assert (await answered(stack, http)).status_code == 200


async def test_what_is_refused_before_the_log_has_it_takes_no_key(stack: Stack) -> None:
    lost = stack.settings.response_ids.mint(0)
    async with keyed(stack) as http:
        refused = await http.post("/v1/responses", json={**RESPONSE, "previous_response_id": lost})
        assert refused.status_code == 404
        assert (await answered(stack, http)).status_code == 200


async def test_without_a_key_each_is_answered_by_itself(stack: Stack) -> None:
    async with client(stack) as http:
        first, second = await answered(stack, http), await answered(stack, http)
    assert first.json()["id"] != second.json()["id"]
    assert stack.pipeline.requests()[0].on_disconnect == "cancel"


async def test_what_is_not_admitted_in_time_is_not_taken_back_from_who_comes_for_it(redis_url: str) -> None:
    settings = gateway_settings(redis_url, "keyedslow", admission_timeout_ms=50)
    async with serving(settings, memory_log(settings)) as stack, keyed(stack) as http:
        late = await http.post(CHATS, json=HELLO)
        [request] = stack.pipeline.requests()
        assert (late.status_code, late.headers["x-should-retry"]) == (503, "true")
        assert late.headers["x-request-id"] == request.response_id
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["Par"])
        stack.pipeline.end(request, 2)
        await until(lambda: stack.runtime.hub.has_ended(request.response_id), "it has ended")
        assert (await http.post(CHATS, json=HELLO)).status_code == 200
    assert (len(stack.pipeline.requests()), stack.pipeline.cancels()) == (1, [])


# Responses: stored, in the background, deleted


async def test_a_response_with_a_key_is_stored_and_not_in_the_background(stack: Stack) -> None:
    async with keyed(stack) as http, client(stack) as other:
        first = await answered(stack, http, "/v1/responses")
        had = (await other.get(f"/v1/responses/{first.json()['id']}")).json()
        assert (first.json()["background"], had["background"], had["store"]) == (False, False, True)
        answering = asyncio.ensure_future(stack.pipeline.answer(["Rome"]))
        body = {**RESPONSE, "previous_response_id": first.json()["id"]}
        assert (await other.post("/v1/responses", json=body)).status_code == 200
        assert [message.role for message in (await answering).messages] == ["user", "assistant", "user"]


async def test_a_refused_response_with_a_key_leaves_nothing_stored(stack: Stack) -> None:
    async with keyed(stack) as http, client(stack) as other:

        async def refuse() -> str:
            request = await stack.pipeline.next_request()
            stack.pipeline.end(request, 1, EndingCode.OVERLOADED, echo=request.echo)  # as admission repeats it
            return request.response_id

        refusing = asyncio.ensure_future(refuse())
        assert (await http.post("/v1/responses", json=RESPONSE)).status_code == 503
        response_id = await refusing
        stored: Any = stack.runtime._keeper.stored
        await until(lambda: not stored.open_ids(), "its row is looked at")
        items = await other.get(f"/v1/responses/{response_id}/input_items")
        assert items.status_code == 404


async def test_who_comes_again_for_what_is_in_the_background_is_told_how_it_stands(stack: Stack) -> None:
    body = {**RESPONSE, "background": True}
    async with keyed(stack) as http:
        asking = asyncio.ensure_future(http.post("/v1/responses", json=body))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        assert (await asking).json()["status"] == "queued"
        running = await http.post("/v1/responses", json=body)
        assert (running.json()["id"], running.json()["status"]) == (request.response_id, "queued")
        stack.pipeline.release(request, 1, ["Par"])
        stack.pipeline.end(request, 2)
        await until(lambda: stack.runtime.hub.has_ended(request.response_id), "it has ended")
        ended = (await http.post("/v1/responses", json=body)).json()
        assert (ended["id"], ended["status"], ended["background"]) == (request.response_id, "completed", True)
    assert len(stack.pipeline.requests()) == 1


async def test_what_was_deleted_is_not_answered_again(stack: Stack) -> None:
    async with keyed(stack) as http, client(stack) as other:
        first = await answered(stack, http, "/v1/responses")
        stored: Any = stack.runtime._keeper.stored
        await completed(stored)
        assert (await other.delete(f"/v1/responses/{first.json()['id']}")).status_code == 200
        refused = await http.post("/v1/responses", json=RESPONSE)
        assert error_of(refused)[:2] == (409, "idempotency_key_unknown")
    assert len(stack.pipeline.requests()) == 1


# Sockets


async def ask(socket: ClientConnection, request_id: str = "r1", key: str = "order 66") -> None:
    await say(socket, type="request", request_id=request_id, body=HELLO, idempotency_key=key)


async def test_a_socket_that_was_lost_is_gone_on_with_by_the_key(stack: Stack) -> None:
    async with dial(stack) as socket:
        await ask(socket)
        request = await stack.pipeline.next_request()
        accepted = await hear(socket)
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["Par"])
        await until(lambda: stack.runtime.hub.delivered_tokens == 1, "the first token has left")
    async with dial(stack) as socket, keyed(stack) as http:
        await ask(socket, "again")
        assert await hear(socket) == Accepted(request_id="again", response_id=accepted.response_id)
        stack.pipeline.release(request, 2, ["is"])
        stack.pipeline.end(request, 3)
        assert (await hear_until_terminal(socket))[1] == "Paris"
        whole = await http.post(CHATS, json=HELLO)
        assert whole.json()["choices"][0]["message"]["content"] == "Paris"
        assert whole.json()["id"] == request.response_id
    assert len(stack.pipeline.requests()) == 1


async def test_one_socket_is_told_a_response_once(stack: Stack) -> None:
    async with dial(stack) as socket:
        await ask(socket)
        request = await stack.pipeline.next_request()
        await hear(socket)
        await ask(socket, "r2")
        error = await hear(socket)
        assert isinstance(error, ErrorMessage)
        assert (error.request_id, error.error.param) == ("r2", "idempotency_key")
        stack.pipeline.start(request)
        stack.pipeline.end(request, 1)
        await hear_until_terminal(socket)


@pytest.mark.parametrize("key", ["", "x" * 256, "ü"])
async def test_a_socket_s_key_has_the_same_bounds(stack: Stack, key: str) -> None:
    async with dial(stack) as socket:
        await ask(socket, key=key)
        error = await hear(socket)
    assert isinstance(error, ErrorMessage)
    assert (error.request_id, error.error.param) == ("r1", "idempotency_key")


# What is kept


async def test_old_keys_are_forgotten_and_of_too_many_the_oldest() -> None:
    keys = MemoryIdempotencyKeys(kept_ms=0)
    tended = TendedKeys(keys, 1)
    for number in range(3):
        await keys.claim(_claim(f"k{number}"))
    await tended.forget()
    assert len(keys) == 0
    keys = MemoryIdempotencyKeys()
    tended = TendedKeys(keys, 2)
    for number in range(5):
        await keys.claim(_claim(f"k{number}"))
    await tended.forget()
    assert len(keys) == 5, "nobody has said that it grew"
    tended.grew("acme")
    await tended.forget()
    assert len(keys) == 2


def _claim(key: str) -> Claim:
    return Claim("acme", key, b"d", "r")


async def test_of_a_tenant_with_too_many_keys_the_oldest_are_as_new(settings: Settings) -> None:
    few = settings.model_copy(update={"metadata": MetadataSettings(tenant_keys=1)})
    async with serving(few, memory_log(few)) as stack, client(stack) as http:
        for key in ("a", "b"):
            answering = asyncio.ensure_future(stack.pipeline.answer(["Hi"]))
            first = await http.post(CHATS, json=HELLO, headers={"idempotency-key": key})
            assert first.status_code == 200
            await answering
        await stack.runtime._keys.forget()
        again = await http.post(CHATS, json={**HELLO, "stream": True}, headers={"idempotency-key": "b"})
        assert json.loads(events_of(again.text)[0][1])["id"] == first.json()["id"]
        answering = asyncio.ensure_future(stack.pipeline.answer(["Hi"]))
        assert (await http.post(CHATS, json=HELLO, headers={"idempotency-key": "a"})).status_code == 200
        await answering
