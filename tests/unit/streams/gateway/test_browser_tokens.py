"""Tokens for pages: minted from a key over HTTP, taken wherever a key is, and over when they or their key are."""

import asyncio
from typing import Any

import anthropic
import httpx
import openai
import pytest
from websockets.exceptions import ConnectionClosed

from schemas.websocket import ErrorMessage, Pong
from streams.clocks import now_ms
from streams.directory import KeyScope
from streams.gateway.service.keys import Keys
from tests.unit.streams.gateway.gateway_stack import KEY, OTHER_KEY, Stack, gateway_settings, memory_log, serving, until
from tests.unit.streams.gateway.http_clients import HELLO, client, events_of, text_of
from tests.unit.streams.gateway.messages_clients import package
from tests.unit.streams.gateway.socket_clients import dial, hear, hear_until_terminal, say


async def minted(stack: Stack, api_key: str = KEY, **body: Any) -> dict[str, Any]:
    async with client(stack, authorization=f"Bearer {api_key}") as http:
        answer = await http.post("/v1/tokens", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    told: dict[str, Any] = answer.json()
    return told


def shown(stack: Stack, what: str) -> httpx.AsyncClient:
    return client(stack, authorization=f"Bearer {what}")


async def test_a_token_says_what_it_is_good_for_and_until_when(stack: Stack) -> None:
    before_s = now_ms() // 1_000
    whole, some = await minted(stack), await minted(stack, expires_in_s=60, scopes=["responses"])
    after_s = now_ms() // 1_000
    assert (whole["object"], whole["scopes"]) == ("token", ["responses", "usage"])
    assert (whole["key_id"], whole["project_id"], whole["expires_in_s"]) == ("k1", "default", 600)
    assert before_s + 600 <= whole["expires_at"] <= after_s + 600
    assert some["scopes"] == ["responses"]
    assert before_s + 60 <= some["expires_at"] <= after_s + 60
    assert KEY not in whole["token"]


@pytest.mark.parametrize("way", ["bearer", "x-api-key"])
async def test_over_http_it_is_shown_as_a_key_is_and_what_it_asks_is_its_keys(stack: Stack, way: str) -> None:
    token = (await minted(stack))["token"]
    headers = {"bearer": {"authorization": f"Bearer {token}"}, "x-api-key": {"authorization": "", "x-api-key": token}}
    async with client(stack, **headers[way]) as http:
        assert (await http.get("/v1/models")).status_code == 200
        answering = asyncio.ensure_future(stack.pipeline.answer(["Hi"]))
        answer = await http.post("/v1/chat/completions", json=HELLO)
        request = await answering
        assert answer.json()["choices"][0]["message"]["content"] == "Hi"
        assert (request.scope.tenant_id, request.scope.project_id, request.scope.key_id) == ("acme", "default", "k1")
        assert (await http.get(f"/v1/responses/{request.response_id}")).status_code == 200
        await http.get("/v1/usage")
        assert [asked.tenant_id for asked in stack.usage.asked] == ["acme"]
    async with shown(stack, (await minted(stack, OTHER_KEY))["token"]) as others:
        assert (await others.get(f"/v1/responses/{request.response_id}")).status_code == 404


@pytest.mark.parametrize("way", ["header", "x-api-key", "subprotocol", "message"])
async def test_on_a_socket_too(stack: Stack, way: str) -> None:
    token = (await minted(stack, scopes=["responses"]))["token"]
    ways: dict[str, dict[str, Any]] = {
        "header": {"additional_headers": {"authorization": f"Bearer {token}"}},
        "x-api-key": {"additional_headers": {"x-api-key": token}},
        "subprotocol": {"additional_headers": {}, "subprotocols": ["sluice.v1", f"sluice.key.{token}"]},
        "message": {"additional_headers": {}},
    }
    async with dial(stack, **ways[way]) as socket:
        if way == "message":
            await say(socket, type="auth", api_key=token)
        await say(socket, type="request", request_id="r1", body=HELLO)
        await stack.pipeline.answer(["Hi", "!"])
        _, text = await hear_until_terminal(socket)
    assert text == "Hi!"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"expires_in_s": 59}, "expires_in_s"),
        ({"expires_in_s": 3_601}, "expires_in_s"),
        ({"expires_in_s": 60.5}, "expires_in_s"),
        ({"expires_in_s": "600"}, "expires_in_s"),
        ({"expires_in_s": True}, "expires_in_s"),
        ({"scopes": []}, "scopes"),
        ({"scopes": "usage"}, "scopes"),
        ({"scopes": ["everything"]}, "scopes[0]"),
        ({"scopes": ["usage", 7]}, "scopes[1]"),
        ({"colour": "red"}, "colour"),
    ],
    ids=str,
)
async def test_a_wrong_body_names_its_field(stack: Stack, body: dict[str, Any], param: str) -> None:
    async with client(stack) as http:
        answer = await http.post("/v1/tokens", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_no_body_and_a_large_one_are_refused(stack: Stack) -> None:
    async with client(stack) as http:
        assert (await http.post("/v1/tokens")).status_code == 415
        assert (await http.post("/v1/tokens", json={"scopes": ["x" * 20_000]})).status_code == 413


async def test_who_has_no_key_or_only_a_token_mints_none(stack: Stack) -> None:
    token = (await minted(stack))["token"]
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as stranger:
        assert (await stranger.post("/v1/tokens", json={})).status_code == 401
    async with shown(stack, token) as http:
        answer = await http.post("/v1/tokens", json={})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "permission_denied")
    assert answer.headers["x-should-retry"] == "false"


async def test_a_token_may_have_less_than_its_key_and_never_more(stack: Stack) -> None:
    stack.directory.narrow(KEY, KeyScope.USAGE)
    async with client(stack) as http:
        answer = await http.post("/v1/tokens", json={"scopes": ["usage", "responses"]})
        assert (answer.status_code, answer.json()["error"]["param"]) == (403, "scopes")
        assert (await http.post("/v1/tokens", json={})).json()["scopes"] == ["usage"]


async def test_what_lacks_the_scope_is_told_so_in_each_formats_own_shape(stack: Stack) -> None:
    token = (await minted(stack, scopes=["usage"]))["token"]
    async with openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key=token, max_retries=2) as of_openai:
        with pytest.raises(openai.PermissionDeniedError) as denied:
            await of_openai.chat.completions.create(model="small", messages=[{"role": "user", "content": "Hi"}])
    assert (denied.value.code, denied.value.type) == ("permission_denied", "permission_error")
    async with package(stack) as of_anthropic:
        with pytest.raises(anthropic.PermissionDeniedError) as refused:
            await of_anthropic.with_options(api_key=token).messages.create(
                model="small", max_tokens=5, messages=[{"role": "user", "content": "Hi"}]
            )
    body: Any = refused.value.body
    assert (body["error"]["type"], body["error"]["code"]) == ("permission_error", "permission_denied")
    async with shown(stack, token) as http:
        assert (await http.get("/v1/models")).status_code == 200
        assert (await http.get("/v1/usage")).status_code == 200
        for method, path in (
            ("POST", "/v1/responses"), ("POST", "/v1/embeddings"), ("POST", "/v1/completions"), ("POST", "/tokenize"),
            ("POST", "/detokenize"), ("POST", "/v1/messages/count_tokens"), ("GET", "/v1/responses/resp_x"),
            ("DELETE", "/v1/responses/resp_x"), ("POST", "/v1/responses/resp_x/cancel"),
            ("GET", "/v1/responses/resp_x/input_items"), ("GET", "/v1/messages/resp_x"),
        ):  # fmt: skip
            answer = await http.request(method, path, json={})
            assert answer.status_code == 403, (method, path, answer.text)
    async with shown(stack, (await minted(stack, scopes=["responses"]))["token"]) as http:
        assert (await http.get("/v1/usage")).status_code == 403
    assert stack.pipeline.requests() == []


async def test_a_socket_without_the_scope_is_told_with_each_message_and_lives(stack: Stack) -> None:
    token = (await minted(stack, scopes=["usage"]))["token"]
    async with dial(stack, additional_headers={"x-api-key": token}) as socket:
        await say(socket, type="request", request_id="r1", body=HELLO)
        refused = await hear(socket)
        assert isinstance(refused, ErrorMessage)
        assert (refused.request_id, refused.error.code, refused.error.type) == (
            "r1", "permission_denied", "permission_error"
        )  # fmt: skip
        for kind in ("resume", "cancel"):
            await say(socket, type=kind, response_id="resp_x")
            refused = await hear(socket)
            assert (refused.response_id, refused.error.code) == ("resp_x", "permission_denied")
        await say(socket, type="ping")
        assert isinstance(await hear(socket), Pong)
    assert stack.pipeline.requests() == []


async def test_a_tokens_socket_ends_with_its_next_message_once_its_key_is_revoked(stack: Stack) -> None:
    token = (await minted(stack))["token"]
    async with dial(stack, additional_headers={"x-api-key": token}) as socket:
        await say(socket, type="ping", nonce="1")
        assert await hear(socket) == Pong(nonce="1")
        stack.directory.revoked.add(KEY)
        await say(socket, type="request", request_id="r1", body=HELLO)
        assert (await hear(socket)).reason == "unauthenticated"
        with pytest.raises(ConnectionClosed):
            await hear(socket)
        assert socket.close_code == 4401
    async with shown(stack, token) as http:
        answer = await http.get("/v1/models")
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert stack.pipeline.requests() == []


def an_hour_passes(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack.runtime.gateway.keys, "_clock_ms", lambda: now_ms() + 3_600_000)


async def test_an_open_socket_closes_by_itself_when_its_token_expires(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as behind:
        behind.setattr(stack.runtime.gateway.keys, "_clock_ms", lambda: now_ms() - 58_500)
        token = (await minted(stack, expires_in_s=60))["token"]
    async with dial(stack, additional_headers={"x-api-key": token}) as socket:
        closing = await hear(socket)
        assert (closing.code, closing.reason, closing.resumable) == (4401, "token_expired", True)
        with pytest.raises(ConnectionClosed):
            await hear(socket)
        assert (socket.close_code, socket.close_reason) == (4401, "token_expired")
    async with shown(stack, token) as http:
        answer = await http.get("/v1/models")
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "token_expired")


async def test_a_clock_that_was_set_back_does_not_close_a_socket_early(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = 0
    authenticate = Keys.authenticate

    def count(keys: Keys, what: str | None) -> Any:
        nonlocal looked
        looked += 1
        return authenticate(keys, what)

    token = (await minted(stack))["token"]
    monkeypatch.setattr(Keys, "authenticate", count)
    with monkeypatch.context() as ahead:
        # As the socket sees it, the token has a moment left; when that is over the clock says otherwise.
        ahead.setattr("streams.gateway.websocket.shown_key.now_ms", lambda: now_ms() + 10**9)
        async with dial(stack, additional_headers={"x-api-key": token}) as socket:
            await until(lambda: looked > 10, "it looks again and again while that clock says so")
            ahead.undo()
            await say(socket, type="ping")
            assert isinstance(await hear(socket), Pong)


async def test_with_its_next_message_it_is_over_and_its_answer_is_resumed_with_another(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dial(stack, additional_headers={"x-api-key": (await minted(stack))["token"]}) as socket:
        await say(socket, type="request", request_id="r1", body={**HELLO, "on_disconnect": "continue"})
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["one "])
        assert [(await hear(socket)).type for _ in range(3)] == ["accepted", "started", "delta"]
        with monkeypatch.context() as later:
            an_hour_passes(stack, later)
            await say(socket, type="ping")
            closing = await hear(socket)
    assert (closing.code, closing.reason, closing.resumable) == (4401, "token_expired", True)
    stack.pipeline.release(request, 2, ["two"])
    stack.pipeline.end(request, 3)
    async with dial(stack, additional_headers={"x-api-key": (await minted(stack))["token"]}) as again:
        await say(again, type="resume", response_id=request.response_id, starting_after=1)
        _, text = await hear_until_terminal(again)
    assert text == "two"


async def test_a_running_stream_over_http_is_told_to_its_end(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    async with shown(stack, (await minted(stack))["token"]) as http:
        asking = asyncio.ensure_future(http.post("/v1/chat/completions", json={**HELLO, "stream": True}))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["one "])
        await until(lambda: stack.runtime.hub.delivered_tokens == 1, "it has begun to be told")
        an_hour_passes(stack, monkeypatch)
        assert (await http.get("/v1/models")).json()["error"]["code"] == "token_expired"
        stack.pipeline.release(request, 2, ["two"])
        stack.pipeline.end(request, 3)
        told = (await asking).text
    assert text_of(events_of(told)) == "one two"
    assert told.rstrip().endswith("[DONE]")


@pytest.mark.parametrize("how", ["cut", "forged", "another deployment's"])
async def test_a_bad_token_opens_nothing(stack: Stack, redis_url: str, how: str) -> None:
    token = (await minted(stack))["token"]
    if how == "cut":
        bad = token[:-1]
    elif how == "forged":
        other = (await minted(stack, OTHER_KEY))["token"]
        bad = f"{other.partition('.')[0]}.{token.partition('.')[2]}"
    else:
        settings = gateway_settings(redis_url, "elsewhere")
        async with serving(settings, memory_log(settings)) as elsewhere:
            bad = (await minted(elsewhere))["token"]
    async with shown(stack, bad) as http:
        for method, path in (("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("POST", "/v1/tokens")):
            answer = await http.request(method, path, json=HELLO)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    async with dial(stack, additional_headers={"x-api-key": bad}) as socket:
        assert (await hear(socket)).reason == "unauthenticated"
    assert stack.pipeline.requests() == []


async def test_minting_is_within_its_tenants_share_of_requests(redis_url: str) -> None:
    share = {"requests_per_s": 1}
    settings = gateway_settings(redis_url, "mintshare", tenant_share=share)
    async with serving(settings, memory_log(settings)) as stack, client(stack) as http:
        statuses = [(await http.post("/v1/tokens", json={})).status_code for _ in range(20)]
        assert 429 in statuses
        async with shown(stack, OTHER_KEY) as other:
            assert (await other.post("/v1/tokens", json={})).status_code == 200
