"""No tenant can spend another's share of a gateway: every case, on real sockets, with another tenant beside."""

import asyncio
import gc
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect

from schemas.base import Scope
from schemas.usage_query import UsageQuery
from schemas.websocket import EditMessage, RequestMessage
from streams.dialects.json_body import parse_json_object
from streams.dialects.neutral import NeutralRequest
from streams.gateway.fan_out.delivery import Follower
from streams.gateway.http.usage_reader import UsagePage
from streams.gateway.service.acceptance import Acceptance
from streams.gateway.service.keys import Principal
from streams.gateway.tenant_shares import BURST_S, SMALL_BODY_BYTES, Bucket, TenantShares
from streams.settings import TenantShareSettings
from tests.unit.streams.gateway.gateway_stack import (
    KEY,
    OTHER_KEY,
    Stack,
    Usage,
    gateway_settings,
    memory_log,
    serving,
    started,
    unread,
    until,
)
from tests.unit.streams.gateway.http_clients import HELLO
from tests.unit.streams.gateway.replays import entry, span

_regions = iter(f"share{number}" for number in range(1_000))


@asynccontextmanager
async def shared(redis_url: str, **share: int) -> AsyncIterator[Stack]:
    """A gateway that gives each tenant so much."""
    settings = gateway_settings(redis_url, next(_regions), tenant_share=share)
    async with serving(settings, memory_log(settings)) as stack:
        yield stack


def stop_time(stack: Stack) -> None:
    """Nothing refills from now on, however long it takes to spend it."""
    stack.runtime.gateway.shares._clock = lambda: 0.0


def client(stack: Stack, key: str = KEY) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=stack.url, headers={"x-api-key": key}, timeout=60, trust_env=False)


def dial(stack: Stack, key: str = KEY) -> connect:
    return connect(stack.websocket_url, additional_headers={"x-api-key": key}, proxy=None)


async def hear(socket: ClientConnection) -> Any:
    async with asyncio.timeout(60):
        return json.loads(await socket.recv())


async def other_tenant_is_answered(stack: Stack) -> None:
    requests = len(stack.pipeline.requests())
    async with client(stack, OTHER_KEY) as other:
        asking = asyncio.ensure_future(other.post("/v1/chat/completions", json=HELLO))
        await until(lambda: len(stack.pipeline.requests()) > requests, "it is accepted")
        [request] = [r for r in stack.pipeline.requests() if r.scope.tenant_id == "beta"]
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["ok"])
        stack.pipeline.end(request, 2)
        assert (await asking).status_code == 200


def is_refused(answer: httpx.Response, code: str) -> None:
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, code)
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert int(answer.headers["retry-after-ms"]) >= 1_000
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["x-should-retry"] == "true"


async def test_requests_per_second_refused_ones_too(redis_url: str) -> None:
    async with shared(redis_url, requests_per_s=1) as stack, client(stack) as http:
        stop_time(stack)
        answers = [await http.post("/v1/chat/completions", content=b"{}") for _ in range(BURST_S + 1)]
        assert {answer.status_code for answer in answers[:-1]} == {415}
        is_refused(answers[-1], "rate_limited_requests")
        async with dial(stack) as socket:
            await socket.send(json.dumps({"type": "request", "request_id": "r1", "body": HELLO}))
            refused = await hear(socket)
            assert (refused["error"]["code"], refused["request_id"]) == ("rate_limited_requests", "r1")
            assert refused["retry_after_ms"] >= 1_000
            await socket.send(json.dumps({"type": "cancel", "response_id": "resp_x"}))
            assert (await hear(socket))["error"]["code"] == "rate_limited_requests"
            await socket.send(json.dumps({"type": "ping"}))
            assert (await hear(socket))["type"] == "pong"
        assert stack.pipeline.requests() == []
        await other_tenant_is_answered(stack)


def post_bluntly(stack: Stack, body: bytes) -> tuple[int, str | None]:
    """As a client that does not look for an answer while it sends."""
    with closing(HTTPConnection("127.0.0.1", stack.port, timeout=60)) as connection:
        headers = {"x-api-key": KEY, "content-type": "application/json"}
        connection.request("POST", "/v1/chat/completions", body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.headers["retry-after-ms"]


async def test_who_sends_a_large_body_is_told_that_it_is_refused(redis_url: str) -> None:
    async with shared(redis_url, requests_per_s=1) as stack, client(stack) as greedy:
        stop_time(stack)
        for _ in range(BURST_S * 2):
            await greedy.get("/v1/models")
        for _ in range(3):
            status, retry_after_ms = await asyncio.to_thread(post_bluntly, stack, b" " * 4_000_000)
            assert status == 429
            assert int(retry_after_ms or 0) >= 1_000
        waiting = await greedy.post("/v1/chat/completions", content=b"", headers={"expect": "100-continue"})
        assert (waiting.status_code, waiting.headers["connection"]) == (429, "close")


async def test_bytes_on_the_log(redis_url: str) -> None:
    body = {"model": "small", "messages": [{"role": "user", "content": "x" * 8_000}]}
    async with shared(redis_url, log_bytes_per_s=1_024) as stack, client(stack) as http:
        stop_time(stack)
        asking = asyncio.ensure_future(http.post("/v1/chat/completions", json=body))
        request = await stack.pipeline.next_request()
        is_refused(await http.post("/v1/chat/completions", json=body), "rate_limited_bytes")
        async with dial(stack) as socket:
            await socket.send(json.dumps({"type": "request", "request_id": "r1", "body": body}))
            refused = await hear(socket)
            assert (refused["error"]["code"], refused["request_id"]) == ("rate_limited_bytes", "r1")
            assert refused["retry_after_ms"] >= 1_000
        assert len(stack.pipeline.requests()) == 1, "nothing of what was refused is on the log"
        await other_tenant_is_answered(stack)
        stack.pipeline.end(request, 1)
        await asking


async def test_connections(redis_url: str) -> None:
    async with shared(redis_url, connections=2) as stack, client(stack) as http:
        async with AsyncExitStack() as opened:
            socket = await opened.enter_async_context(dial(stack))
            await socket.send(json.dumps({"type": "ping"}))
            assert (await hear(socket))["type"] == "pong"
            asking = asyncio.ensure_future(http.post("/v1/chat/completions", json=HELLO))
            request = await stack.pipeline.next_request()
            is_refused(await http.get("/v1/models"), "rate_limited_connections")
            async with dial(stack) as refused:
                closing = await hear(refused)
            assert (closing["type"], closing["code"], closing["reason"]) == (
                "closing",
                1013,
                "rate_limited_connections",
            )
            assert closing["resumable"]
            assert closing["retry_after_ms"] >= 1_000
            assert (await http.get("/healthz")).status_code == 200
            await other_tenant_is_answered(stack)
            stack.pipeline.end(request, 1)
            await asking
            assert (await http.get("/v1/models")).status_code == 200
        await until(lambda: stack.runtime.edge.connections == 0, "all have gone")
        async with dial(stack) as first, dial(stack) as second:
            for socket in (first, second):
                await socket.send(json.dumps({"type": "ping"}))
                assert (await hear(socket))["type"] == "pong"


async def test_open_responses(redis_url: str) -> None:
    async with shared(redis_url, open_responses=2) as stack, client(stack) as http:
        asking = [asyncio.ensure_future(http.post("/v1/chat/completions", json=HELLO)) for _ in range(2)]
        await until(lambda: len(stack.pipeline.requests()) == 2, "both are accepted")
        ours = stack.pipeline.requests()
        is_refused(await http.post("/v1/chat/completions", json=HELLO), "rate_limited_concurrency")
        async with dial(stack) as socket:
            await socket.send(json.dumps({"type": "request", "request_id": "r1", "body": HELLO}))
            assert (await hear(socket))["error"]["code"] == "rate_limited_concurrency"
        await other_tenant_is_answered(stack)
        for request in ours:
            stack.pipeline.end(request, 1)
        await asyncio.gather(*asking)
        again = asyncio.ensure_future(http.post("/v1/chat/completions", json=HELLO))
        await until(lambda: len(stack.pipeline.requests()) == 4, "there is room again")
        stack.pipeline.end(stack.pipeline.requests()[-1], 1)
        for request in stack.pipeline.requests():
            stack.pipeline.end(request, 1)
        await again


async def test_memory_of_bodies_over_http(redis_url: str) -> None:
    async def half_a_body() -> AsyncIterator[bytes]:
        yield b" " * 60_000
        await more.wait()
        yield b"{}"

    more = asyncio.Event()
    async with shared(redis_url, body_bytes=100_000) as stack, client(stack) as http:
        http.headers["content-type"] = "application/json"
        slow = asyncio.ensure_future(http.post("/v1/chat/completions", content=half_a_body()))
        await until(lambda: stack.runtime.gateway.shares.body_bytes("acme") == 60_000, "half of it is held")
        is_refused(await http.post("/v1/chat/completions", content=b" " * 60_000), "rate_limited_bytes")
        await other_tenant_is_answered(stack)
        more.set()
        assert (await slow).status_code == 400
        assert (await http.post("/v1/chat/completions", content=b" " * 60_000)).status_code == 400
        assert stack.runtime.gateway.shares.body_bytes("acme") == 0


@pytest.mark.parametrize("way", ["fragments", "one frame"])
async def test_memory_of_messages_that_never_end(redis_url: str, way: str) -> None:
    async with shared(redis_url, body_bytes=100_000) as stack, dial(stack) as first, dial(stack) as second:
        for socket in (first, second):
            await socket.send(json.dumps({"type": "ping"}))
            assert (await hear(socket))["type"] == "pong"
        if way == "fragments":
            message = b"\x01\xfe" + (60_000).to_bytes(2, "big") + b"\0\0\0\0" + b" " * 60_000
        else:
            message = b"\x81\xff" + (90_000).to_bytes(8, "big") + b"\0\0\0\0" + b" " * 60_000
        first.transport.write(message)
        await until(lambda: stack.runtime.gateway.shares.body_bytes("acme") >= 60_000, "it is held")
        second.transport.write(message)
        closing = await hear(second)
        assert (closing["type"], closing["code"], closing["reason"]) == ("closing", 1013, "rate_limited_bytes")
        await other_tenant_is_answered(stack)
        first.transport.abort()
        await until(lambda: stack.runtime.gateway.shares.body_bytes("acme") == 0, "nothing is held any more")


async def test_a_ping_passes_beside_large_bodies_and_costs_no_socket_its_streams_when_small_ones_hold_the_rest(
    redis_url: str,
) -> None:
    async with shared(redis_url, body_bytes=64_016) as stack, dial(stack) as first, dial(stack) as second:
        for socket in (first, second):
            await socket.send(json.dumps({"type": "ping"}))
            assert (await hear(socket))["type"] == "pong"
        shares = stack.runtime.gateway.shares
        first.transport.write(b"\x01\xfe" + (60_000).to_bytes(2, "big") + b"\0\0\0\0" + b" " * 60_000)
        await until(lambda: shares.body_bytes("acme") >= 60_000, "it is held")
        with shares.body("acme") as large, shares.body("acme") as small:
            assert not large.set(SMALL_BODY_BYTES + 1)
            await second.send(json.dumps({"type": "ping"}))
            assert (await hear(second))["type"] == "pong"
            await until(lambda: small.set(64_016 - 60_000), "the ping is done with")
            await second.send(json.dumps({"type": "ping"}))
            assert (await hear(second))["error"]["code"] == "rate_limited_bytes"
        first.transport.abort()
        await until(lambda: shares.body_bytes("acme") == 0, "nothing is held any more")
        await second.send(json.dumps({"type": "ping"}))
        assert (await hear(second))["type"] == "pong"


def test_large_bodies_leave_a_sixteenth_to_small_ones_and_all_together_have_no_more_than_the_share() -> None:
    shares = TenantShares(TenantShareSettings(body_bytes=1_600_000), lambda: 0.0)
    with ExitStack() as bodies:
        while bodies.enter_context(shares.body("acme")).set(100_000):
            pass
        assert shares.body_bytes("acme") == 1_500_000
        while bodies.enter_context(shares.body("acme")).set(SMALL_BODY_BYTES):
            pass
        assert 1_600_000 - SMALL_BODY_BYTES < shares.body_bytes("acme") <= 1_600_000
    assert shares.body_bytes("acme") == 0


def test_an_answer_that_is_alone_may_take_more_than_the_share() -> None:
    shares = TenantShares(TenantShareSettings(answer_bytes=1_600), lambda: 0.0)
    with shares.answer("acme") as first, shares.answer("acme") as second:
        assert first.set(100_000)
        assert not second.set(1)
        assert first.set(200_000)
        assert first.set(0)
        assert second.set(2_000)
    assert shares.answer_bytes("acme") == 0


DENSE = {"model": "small", "messages": [{"role": "user", "content": "a"}] * 250}
"""8 KB that become more than 100 KB of objects."""


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", DENSE), ("/tokenize", DENSE), ("/detokenize", {"model": "small", "tokens": [1] * 2_000})],
    ids=["chat", "tokenize", "detokenize"],
)
async def test_memory_of_what_is_made_of_bodies(redis_url: str, path: str, body: dict[str, Any]) -> None:
    async with shared(redis_url, body_bytes=100_000) as stack, client(stack) as http:
        is_refused(await http.post(path, json=body), "rate_limited_bytes")
        assert stack.runtime.gateway.shares.body_bytes("acme") == 0
        await other_tenant_is_answered(stack)


async def test_memory_of_messages_until_they_are_stored(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    submit, goes_on = Acceptance.submit, asyncio.Event()

    async def late(
        self: Acceptance, principal: Principal, asked: NeutralRequest, **fields: Any
    ) -> tuple[str, Follower]:
        if principal.tenant.tenant_id == "acme":
            await goes_on.wait()
        return await submit(self, principal, asked, **fields)

    monkeypatch.setattr(Acceptance, "submit", late)
    async with shared(redis_url, body_bytes=400_000) as stack, dial(stack) as socket:
        for number in range(3):
            await socket.send(json.dumps({"type": "request", "request_id": f"r{number}", "body": DENSE}))
        refused = await hear(socket)
        assert (refused["error"]["code"], refused["request_id"]) == ("rate_limited_bytes", "r2")
        assert refused["retry_after_ms"] >= 1_000
        assert stack.runtime.gateway.shares.body_bytes("acme") > 200_000
        await other_tenant_is_answered(stack)
        goes_on.set()
        assert {(await hear(socket))["request_id"] for _ in range(2)} == {"r0", "r1"}
        await until(lambda: stack.runtime.gateway.shares.body_bytes("acme") == 0, "nothing is held any more")


def still_there(before: set[int]) -> list[object]:
    """Messages, and their lists that were not there before."""
    gc.collect()
    return [
        each
        for each in gc.get_objects()
        if type(each) in (RequestMessage, EditMessage)
        or (type(each) is list and len(each) in (10_000, 250) and id(each) not in before)
    ]


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ({"type": "request", "request_id": "r", "body": {"messages": ["\u0101"] * 10_000}}, "error"),
        ({"type": "request", "request_id": "", "body": {"messages": ["\u0101"] * 10_000}}, "error"),
        (
            {"type": "edit", "request_id": "r", "response_id": "resp_x", "body": {"messages": ["\u0101"] * 10_000}},
            "error",
        ),
        ({"type": "request", "request_id": "r", "body": DENSE}, "accepted"),
    ],
    ids=["refused", "no message", "edits nothing", "accepted"],
)
async def test_an_idle_socket_holds_nothing_of_its_last_message(
    stack: Stack, message: dict[str, Any], kind: str
) -> None:
    own = {id(each) for each in gc.get_objects() if type(each) is list}
    async with dial(stack) as socket:
        await socket.send(json.dumps(message))
        assert (await hear(socket))["type"] == kind
        await until(lambda: stack.runtime.gateway.shares.body_bytes("acme") == 0, "nothing is held any more")
        await until(lambda: not still_there(own), "what was held is gone, once who held it has returned")


async def test_turns_at_parsing_large_bodies(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, begun = threading.Event(), threading.Semaphore(0)

    def parse_for_long(raw: bytes | str, *most_values: int) -> dict[str, Any]:
        if b"acme" in raw[:20]:
            begun.release()
            assert goes_on.wait(60)
        return parse_json_object(raw, *most_values)

    monkeypatch.setattr("streams.gateway.http.answering.parse_json_object", parse_for_long)
    content = {"model": "small", "messages": [{"role": "user", "content": "x" * 100_000}]}
    async with shared(redis_url) as stack, client(stack) as greedy, client(stack, OTHER_KEY) as other:
        asking = [
            asyncio.ensure_future(greedy.post("/v1/chat/completions", json={"acme": 1, **content})) for _ in range(6)
        ]
        await until(lambda: begun.acquire(blocking=False), "the greedy one's bodies are parsed")
        answering = asyncio.ensure_future(stack.pipeline.answer(["ok"]))
        try:
            async with asyncio.timeout(60):
                assert (await other.post("/v1/chat/completions", json=content)).status_code == 200
        finally:
            goes_on.set()
            answering.cancel()
        assert {(await each).status_code for each in asking} == {400}


async def test_turns_at_asking_for_usage(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, asked = asyncio.Event(), Counter[str]()
    usage = Usage.usage

    async def slow(self: Usage, query: UsageQuery) -> UsagePage:
        asked[query.tenant_id or ""] += 1
        if query.tenant_id == "acme":
            await goes_on.wait()
        return await usage(self, query)

    monkeypatch.setattr(Usage, "usage", slow)
    async with shared(redis_url) as stack, client(stack) as greedy, client(stack, OTHER_KEY) as other:
        asking = [asyncio.ensure_future(greedy.get("/v1/usage")) for _ in range(30)]
        await until(lambda: asked["acme"], "one of the many has its turn")
        assert (await other.get("/v1/usage")).status_code == 200
        assert asked["acme"] == 1
        goes_on.set()
        answers = [await each for each in asking]
    assert {answer.status_code for answer in answers} == {200, 503}
    refused = next(answer for answer in answers if answer.status_code == 503)
    assert refused.json()["error"]["code"] == "overloaded"
    assert int(refused.headers["retry-after-ms"]) >= 1_000


async def test_places_to_wait_for_what_is_not_known_yet(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.gateway.service.patience.WAITING_OF_TENANT", 3, raising=False)
    settings = gateway_settings(redis_url, next(_regions), admission_timeout_ms=60_000)
    async with serving(settings, memory_log(settings)) as stack, client(stack) as greedy:
        ids = [stack.settings.response_ids.mint(0) for _ in range(6)]
        known = [entry(response_id, span(1, "ab"), with_start=True, is_first=True) for response_id in ids]
        await stack.runtime.gateway._history.append(known)
        unread(monkeypatch, 0)
        asking = [asyncio.ensure_future(greedy.get(f"/v1/responses/{response_id}")) for response_id in ids]
        await until(lambda: sum(each.done() for each in asking) == 3, "those beyond the bound are answered")
        for refused in (each.result() for each in asking if each.done()):
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "replay_unavailable")
            assert int(refused.headers["retry-after-ms"]) > 0
        async with client(stack, OTHER_KEY) as other:
            response_id = stack.settings.response_ids.mint(1)
            waiting = asyncio.ensure_future(other.get(f"/v1/responses/{response_id}"))
            stack.pipeline.write(response_id, started(response_id, Scope(tenant_id="beta")))
            assert (await waiting).json()["status"] == "in_progress"
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


def test_a_bucket_refills_with_time_and_says_when() -> None:
    bucket = Bucket(rate=2, now_s=0.0)
    assert [bucket.take(1, 0.0) for _ in range(2 * BURST_S)] == [None] * 2 * BURST_S
    assert bucket.take(1, 0.0) == 501
    assert bucket.take(1, 0.5) is None
    assert bucket.take(10_000, 0.5) == BURST_S * 1_000 + 1, "what never fits waits until all is there"
    assert bucket.take(10_000, 0.5 + BURST_S) is None
    assert bucket.take(1, 0.5 + BURST_S) is not None, "and is paid back"
