"""Conversations as a page lists and shows them, whose they are, and that each turn is written once, whoever dies."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from schemas.endings import EndingCode
from schemas.generated import Kind
from schemas.request import Message, TextPart
from streams.dialects.neutral import NeutralRequest
from streams.dialects.responses.body import parse_responses_request
from streams.gateway.conversations.memory import MemoryConversations
from streams.gateway.conversations.port import NewConversation
from streams.gateway.conversations.tending import TendedConversations
from streams.gateway.conversations.titles import title_of
from streams.gateway.idempotency.memory import MemoryIdempotencyKeys
from streams.gateway.stored.memory import MemoryStoredResponses
from streams.gateway.stored.port import Bounds
from streams.settings import Settings
from tests.unit.streams.gateway.gateway_stack import KEY, Stack, memory_log, serving, until
from tests.unit.streams.gateway.http_clients import client, sdk
from tests.unit.streams.gateway.stored_stories import DAY_MS, ask, completed, said
from tests.unit.streams.gateway.test_openapi import document_of, is_told

PAGES = "/api/conversations"


@pytest.fixture
async def http(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    async with client(stack) as given:
        yield given


async def created(http: httpx.AsyncClient, **body: Any) -> str:
    answer = await http.post(PAGES, json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def shown(http: httpx.AsyncClient, conversation: str, **query: Any) -> dict[str, Any]:
    answer = await http.get(f"{PAGES}/{conversation}", params=query)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def listed(http: httpx.AsyncClient, **query: Any) -> list[str]:
    answer = await http.get(PAGES, params=query)
    assert answer.status_code == 200, answer.text
    return [each["id"] for each in answer.json()["data"]]


def contents(told: dict[str, Any]) -> list[str]:
    return [message["content"] for message in told["messages"]]


async def turn(stack: Stack, conversation: str, text: str, *answer: str, **more: Any) -> str:
    """Its response's id, once it is written."""
    async with sdk(stack) as api:
        response, _ = await ask(stack, api, text, answer or ("Yes", "."), conversation=conversation, **more)
    return response.id


async def token(http: httpx.AsyncClient, **body: Any) -> str:
    return str((await http.post("/v1/tokens", json=body)).json()["token"])


async def test_a_page_shows_a_conversation(
    stack: Stack, http: httpx.AsyncClient, stored: MemoryStoredResponses
) -> None:
    conversation = await created(http, metadata={"a": "b"})
    assert contents(await shown(http, conversation)) == []
    first = await turn(stack, conversation, "  What is\nthe capital of France?", "Paris", ".")
    second = await turn(stack, conversation, "And of Italy?", "Rome")
    await completed(stored)
    told = await shown(http, conversation)
    assert (told["id"], told["object"], told["metadata"]) == (conversation, "conversation", {"a": "b"})
    assert told["title"] == "What is the capital of France?"
    assert (told["model"], told["total_tokens"], told["has_more"]) == ("tiny", 2 * 4 + 2 + 1, False)
    assert [(message["role"], message["content"], message["response_id"]) for message in told["messages"]] == [
        ("user", "  What is\nthe capital of France?", first), ("assistant", "Paris.", first),
        ("user", "And of Italy?", second), ("assistant", "Rome", second),
    ]  # fmt: skip
    assert all(message["created_at"] >= told["created_at"] for message in told["messages"])
    assert [(each["response_id"], each["previous_response_id"], each["status"]) for each in told["turns"]] == [
        (first, None, "completed"), (second, first, "completed")
    ]  # fmt: skip


async def test_branches_stand_beside_each_other(
    stack: Stack, http: httpx.AsyncClient, stored: MemoryStoredResponses
) -> None:
    conversation = await created(http)
    first = await turn(stack, conversation, "One", "1")
    second = await turn(stack, conversation, "Two", "2")
    other = await turn(stack, conversation, "Zwei", "ii", previous_response_id=first)
    await completed(stored)
    told = await shown(http, conversation)
    assert contents(told) == ["One", "1", "Zwei", "ii"]
    assert [each["branches"] for each in told["turns"]] == [[first], [second, other]]
    assert contents(await shown(http, conversation, branch=second)) == ["One", "1", "Two", "2"]
    for unknown in ({"branch": "resp_x"}, {"branch": ""}, {"before": ""}, {"through": "resp_x"}):
        refused = await http.get(f"{PAGES}/{conversation}", params=unknown)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "previous_response_not_found")
    for name in ("before", "through"):
        refused = await http.get(f"{PAGES}/{conversation}", params={"branch": first, name: first})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)


async def test_a_branch_is_shown_to_its_newest_end(
    stack: Stack, http: httpx.AsyncClient, stored: MemoryStoredResponses
) -> None:
    conversation = await created(http)
    first = await turn(stack, conversation, "One", "1")
    second = await turn(stack, conversation, "Two", "2")
    await turn(stack, conversation, "Three", "3")
    other = await turn(stack, conversation, "Zwei", "ii", previous_response_id=first)
    await turn(stack, conversation, "III", "iii", previous_response_id=second)
    await completed(stored)
    assert contents(await shown(http, conversation, through=second)) == ["One", "1", "Two", "2", "III", "iii"]
    assert contents(await shown(http, conversation, through=other)) == ["One", "1", "Zwei", "ii"]
    assert contents(await shown(http, conversation, through=first)) == contents(await shown(http, conversation))
    assert contents(await shown(http, conversation, through=second, limit=1)) == ["III", "iii"]


async def test_a_turn_says_how_it_ended_and_what_it_used(
    stack: Stack, http: httpx.AsyncClient, stored: MemoryStoredResponses
) -> None:
    conversation = await created(http)

    async def asked(code: EndingCode, *tokens: str, kind: Kind) -> None:
        ending = asyncio.ensure_future(stack.pipeline.ends(code, *tokens, kind=kind))
        await http.post("/v1/responses", json={"model": "small", "input": "x", "conversation": conversation})
        await ending

    await asked(EndingCode.COMPLETED, "Hm", "m", kind="reasoning")
    await asked(EndingCode.ENGINE_FAILED, "Wha", kind="content")
    await completed(stored)
    thought, failed = (await shown(http, conversation))["turns"]
    assert (thought["model"], thought["code"], thought["finish_reason"]) == ("tiny", "completed", "stop")
    assert (thought["reasoning"], thought["error"]) == ("Hmm", None)
    assert thought["usage"]["total_tokens"] == 4 + 2
    assert (failed["code"], failed["finish_reason"], failed["error"]["code"]) == (
        "engine_failed", "error", "engine_failed"
    )  # fmt: skip
    assert failed["error"]["message"]


async def test_a_long_one_is_shown_in_pages_from_its_end(
    stack: Stack, http: httpx.AsyncClient, stored: MemoryStoredResponses
) -> None:
    conversation = await created(http)
    for number in range(5):
        await turn(stack, conversation, f"q{number}", f"a{number}")
    await completed(stored)
    told = await shown(http, conversation, limit=2)
    pages = [contents(told)]
    while told["has_more"]:
        told = await shown(http, conversation, limit=2, before=told["turns"][0]["response_id"])
        pages.append(contents(told))
    assert pages == [["q3", "a3", "q4", "a4"], ["q1", "a1", "q2", "a2"], ["q0", "a0"]]


async def test_a_turn_that_runs_is_shown_as_far_as_it_was_asked(stack: Stack, http: httpx.AsyncClient) -> None:
    conversation = await created(http)
    async with sdk(stack) as api:
        asking = asyncio.ensure_future(api.responses.create(model="small", input="Hi", conversation=conversation))
        request = await stack.pipeline.next_request()
        told = await shown(http, conversation)
        assert (contents(told), told["turns"][0]["status"]) == (["Hi"], "in_progress")
        assert told["turns"][0]["response_id"] == request.response_id
        assert (told["turns"][0]["code"], told["turns"][0]["usage"]) == (None, None)
        answer = await http.get(f"{PAGES}/{conversation}")
        is_told(await document_of(stack), "get", PAGES + "/{conversation_id}", answer)
        stack.pipeline.start(request)
        stack.pipeline.end(request, 1)
        await asking


async def test_the_list_is_by_last_use_and_in_pages(stack: Stack, http: httpx.AsyncClient) -> None:
    names = [await created(http, title=f"c{number}") for number in range(4)]
    await asyncio.sleep(0.01)
    await turn(stack, names[1], "Hi")
    assert await listed(http) == [names[1], names[3], names[2], names[0]]
    page = (await http.get(PAGES, params={"limit": 3})).json()
    assert (page["object"], page["has_more"], page["first_id"], page["last_id"]) == ("list", True, names[1], names[2])
    page = (await http.get(PAGES, params={"limit": 3, "after": names[2]})).json()
    assert ([each["title"] for each in page["data"]], page["has_more"]) == (["c0"], False)
    for query in ({"limit": 0}, {"limit": 101}):
        assert (await http.get(PAGES, params=query)).status_code == 400


async def test_one_is_renamed_and_keeps_its_metadata(http: httpx.AsyncClient) -> None:
    conversation = await created(http, title="Old", metadata={"a": "b"})
    renamed = (await http.post(f"{PAGES}/{conversation}", json={"title": "New"})).json()
    assert (renamed["title"], renamed["metadata"]) == ("New", {"a": "b"})
    emptied = (await http.post(f"{PAGES}/{conversation}", json={"metadata": {}})).json()
    assert (emptied["title"], emptied["metadata"]) == ("New", {})
    assert (await http.post(f"{PAGES}/{conversation}", json={})).status_code == 400
    deleted = (await http.delete(f"{PAGES}/{conversation}")).json()
    assert deleted == {"id": conversation, "object": "conversation.deleted", "deleted": True}
    assert await listed(http) == []


async def test_no_title_has_a_nul(stack: Stack, http: httpx.AsyncClient) -> None:
    conversation = await created(http, metadata={"a\0": "b\0"})
    for path in (PAGES, f"{PAGES}/{conversation}"):
        refused = await http.post(path, json={"title": "a\0b"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "title"), refused.text
        headers = {"content-type": "application/json"}
        halved = await http.post(path, content=rb'{"title": "a\ud800b"}', headers=headers)
        assert halved.status_code == 400, "half a character is no JSON"
    await turn(stack, conversation, "\0What?", "Yes")
    assert (await shown(http, conversation))["title"] == "What?"
    assert contents(await shown(http, conversation))[0] == "\0What?", "what was said stays as it was"


async def test_what_is_answered_stands_in_the_document(stack: Stack, http: httpx.AsyncClient) -> None:
    document = await document_of(stack)
    conversation = await created(http)
    await turn(stack, conversation, "Hi")
    one = {"openai": "/v1/conversations/{conversation_id}", "page": PAGES + "/{conversation_id}"}
    items = one["openai"] + "/items"
    for known in (conversation, "conv_x"):
        for method, path, body in (
            ("post", "/v1/conversations", {}), ("post", "/v1/conversations", {"x": 1}), ("post", PAGES, {}),
            ("get", one["openai"], None), ("post", one["openai"], {"metadata": None}), ("post", one["openai"], {}),
            ("get", items, None), ("get", PAGES, None), ("get", one["page"], None),
            ("post", one["page"], {"title": "x"}), ("post", one["page"], {}), ("delete", one["page"], None),
            ("delete", one["openai"], None),
        ):  # fmt: skip
            answer = await http.request(method.upper(), path.replace("{conversation_id}", known), json=body)
            is_told(document, method, path, answer)
    item = items + "/{item_id}"
    is_told(document, "get", item, await http.get(item.format(conversation_id=conversation, item_id="msg_x")))


async def test_a_users_conversations_are_that_users_and_the_tenants_keys(stack: Stack, http: httpx.AsyncClient) -> None:
    ada, eve, nobody = [await token(http, user="ada"), await token(http, user="eve"), await token(http)]
    async with (
        client(stack, authorization=f"Bearer {ada}") as of_ada,
        client(stack, authorization=f"Bearer {eve}") as of_eve,
        client(stack, authorization=f"Bearer {nobody}") as of_nobody,
    ):
        hers, made = await created(of_ada), await created(http, user="ada")
        open_to_all = await created(http)
        assert await listed(of_ada) == await listed(http, user="ada") == [made, hers]
        assert await listed(of_eve) == []
        assert set(await listed(http)) == {hers, made, open_to_all}
        asked = {"model": "small", "input": "x", "conversation": hers}
        for stranger in (of_eve, of_nobody):
            assert (await stranger.get(f"{PAGES}/{hers}")).status_code == 404
            assert (await stranger.delete(f"/v1/conversations/{hers}")).status_code == 404
            assert (await stranger.post("/v1/responses", json=asked)).status_code == 404
        refused = await of_nobody.get(PAGES)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
        assert (await of_nobody.get(f"{PAGES}/{open_to_all}")).status_code == 200
        assert (await of_ada.get(f"{PAGES}/{open_to_all}")).status_code == 404
        assert (await of_ada.post(PAGES, json={"user": "eve"})).status_code == 400
        answering = asyncio.ensure_future(stack.pipeline.answer(["Hi"]))
        assert (await of_ada.post("/v1/responses", json={**asked, "user": "eve"})).status_code == 200
        request = await answering
    pseudonym = stack.runtime.gateway.keys.authenticate(ada).end_user
    assert request.scope.end_user == pseudonym != "ada", "whatever a page says of its user"
    assert len(pseudonym) == 32
    # A key that is shown by its owner alone has all of them.
    assert KEY not in ada


async def test_a_token_that_may_not_ask_has_no_conversations(stack: Stack, http: httpx.AsyncClient) -> None:
    narrow = await token(http, user="ada", scopes=["usage"])
    async with client(stack, authorization=f"Bearer {narrow}") as page:
        for answer in (await page.get(PAGES), await page.post("/v1/conversations", json={})):
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "permission_denied")


async def test_killed_in_mid_answer_its_turn_is_written_once(settings: Settings) -> None:
    log, stored = memory_log(settings), MemoryStoredResponses()
    async with serving(settings, log, stored=stored) as stack, client(stack) as http, sdk(stack) as api:
        conversation = await created(http)
        asking = asyncio.ensure_future(
            api.responses.create(model="small", input="France?", conversation=conversation, background=True)
        )
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["Par"])
        await asking
    stack.pipeline.release(request, 2, ["is"])
    stack.pipeline.end(request, 3)
    for _ in range(2):
        async with serving(settings, log, stored=stored) as stack, client(stack) as http:
            await until(lambda: stack.runtime.hub.has_ended(request.response_id) or not stored.open_ids(), "it is read")
            await stack.runtime._keeper.look(request.deadline_ms + DAY_MS)
            await completed(stored)
            told = await shown(http, conversation)
            assert contents(told) == ["France?", "Paris"]
            assert (told["total_tokens"], len(told["turns"])) == (6, 1)


async def test_what_comes_again_with_its_key_is_one_turn(settings: Settings, stored: MemoryStoredResponses) -> None:
    """Also once others have followed it, and where the log did not acknowledge it at first."""
    keys = MemoryIdempotencyKeys()
    async with serving(settings, memory_log(settings), stored=stored, keys=keys) as stack, client(stack) as http:
        conversation = await created(http)
        body = {"model": "small", "input": "One", "conversation": conversation}
        headers = {"idempotency-key": "k"}
        answering = asyncio.ensure_future(stack.pipeline.answer(["1"]))
        first = (await http.post("/v1/responses", json=body, headers=headers)).json()
        await answering
        await completed(stored)
        await turn(stack, conversation, "Two", "2")
        again = (await http.post("/v1/responses", json=body, headers=headers)).json()
        assert again["id"] == first["id"]
        await completed(stored)
        assert contents(await shown(http, conversation)) == ["One", "1", "Two", "2"]
        # As if nobody had heard of it: what is written again goes on with what it went on with.
        async with sdk(stack) as api:
            _, asked = await ask(stack, api, "Three", conversation=conversation)
        assert [text for _, text in said(asked)] == ["One", "1", "Two", "2", "Three"]
        place = await stack.runtime.gateway.conversations.place(
            stack.runtime.gateway.authenticate(KEY), asked_in(conversation), first["id"]
        )  # fmt: skip
        assert place.parent is None


def asked_in(conversation: str) -> NeutralRequest:
    return parse_responses_request({"model": "small", "input": "One", "conversation": conversation})


@pytest.mark.parametrize("path", [PAGES, "/v1/conversations"])
async def test_the_same_key_and_body_make_one_conversation(stack: Stack, http: httpx.AsyncClient, path: str) -> None:
    document = await document_of(stack)
    body, key = {"metadata": {"a": "b"}}, {"idempotency-key": "chat-1"}
    made = [await http.post(path, json=body, headers=key) for _ in range(3)]
    assert [answer.status_code for answer in made] == [200] * 3
    [conversation] = {answer.json()["id"] for answer in made}
    assert await listed(http) == [conversation]
    others = [(path, {}), ({PAGES: "/v1/conversations"}.get(path, PAGES), body)]
    for other, another in others:
        refused = await http.post(other, json=another, headers=key)
        is_told(document, "post", other, refused)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "idempotency_key_reused")
    await http.delete(f"{path}/{conversation}")
    gone = await http.post(path, json=body, headers=key)
    assert (gone.status_code, gone.json()["error"]["code"]) == (409, "idempotency_key_unknown")
    wrong = await http.post(path, json=body, headers={"idempotency-key": ""})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "Idempotency-Key")
    assert await listed(http) == []


async def test_a_key_gives_nobody_another_users_conversation(stack: Stack, http: httpx.AsyncClient) -> None:
    key = {"idempotency-key": "chat-1"}
    async with client(stack, authorization=f"Bearer {await token(http, user='ada')}") as ada:
        hers = (await ada.post(PAGES, json={}, headers=key)).json()["id"]
        assert (await ada.post(PAGES, json={}, headers=key)).json()["id"] == hers
    async with client(stack, authorization=f"Bearer {await token(http, user='bob')}") as bob:
        refused = await bob.post(PAGES, json={}, headers=key)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "idempotency_key_unknown")
    assert (await http.post(PAGES, json={}, headers=key)).status_code == 409
    other = await http.post(PAGES, json={}, headers={"idempotency-key": "chat-2"})
    assert other.json()["id"] != hers


async def test_a_refused_turn_leaves_no_trace(
    stack: Stack, http: httpx.AsyncClient, stored: MemoryStoredResponses
) -> None:
    conversation = await created(http)
    ending = asyncio.ensure_future(stack.pipeline.ends(EndingCode.RATE_LIMITED_TOKENS))
    refused = await http.post("/v1/responses", json={"model": "small", "input": "x", "conversation": conversation})
    assert refused.status_code == 429
    await ending
    await until(lambda: not len(stored), "its row is dropped")
    assert (await shown(http, conversation))["turns"] == []


async def test_what_was_deleted_a_month_ago_leaves_the_database() -> None:
    stored = MemoryStoredResponses()
    store = MemoryConversations(stored)
    tended = TendedConversations(store, Bounds(2, 10_000), DAY_MS)
    for number in range(4):
        await store.create(new(f"c{number}", number))
    await store.delete("acme", None, "c3")
    await tended.forget()
    assert len(stored.conversations) == 4, "nothing has grown, and it may have been a mistake"
    store.skew_ms = 31 * DAY_MS
    await tended.forget()
    assert set(stored.conversations) == {"c0", "c1", "c2"}
    tended.grew("acme")
    await tended.forget()
    assert set(stored.conversations) == {"c1", "c2"}, "the longest unused"


def new(name: str, at_ms: int) -> NewConversation:
    return NewConversation(name, "acme", "", "", {}, at_ms, b"")


def test_a_title_is_the_first_question_on_one_short_line() -> None:
    def message(role: Any, text: str) -> Message:
        return Message(role=role, content=[TextPart(text=text)])

    assert title_of([message("system", "Be brief."), message("user", " a \n\n b ")]) == "a b"
    assert title_of([message("system", "x")]) == ""
    assert title_of([message("user", "Nul\0, bell\a and \x85 are blanks, 👩\u200d🔬 is none")]) == (
        "Nul , bell and are blanks, 👩\u200d🔬 is none"
    )
    long = title_of([message("user", "word " * 100)])
    assert len(long) <= 80
    assert long.endswith("word…")
