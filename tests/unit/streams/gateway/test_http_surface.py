"""What surrounds chats over HTTP: models, usage, health, docs, and everything that is refused or bounded."""

import asyncio
import gzip
import json
import resource
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import openai
import pytest
from websockets.exceptions import ConnectionClosed

from schemas.base import Scope
from schemas.request import MAX_MESSAGES, ReplyTo, Request
from streams.dialects.json_body import LARGE_CHARS, parse_json_object
from streams.dialects.openai_chat import parse_chat_request
from streams.directory import Model
from streams.gateway.http.models import model_object
from streams.log.port import MAX_RECORD_BYTES
from streams.settings import MAX_BODY_BYTES
from tests.unit.streams.gateway.gateway_stack import (
    Stack,
    gateway_settings,
    memory_log,
    serving,
    until,
)
from tests.unit.streams.gateway.http_clients import AUTH, HELLO, client, sdk
from tests.unit.streams.gateway.socket_clients import dial


async def test_models_are_listed_with_prices_and_windows(stack: Stack) -> None:
    async with sdk(stack) as api:
        listed, _alias = [model async for model in await api.models.list()]
        assert listed.id == "tiny"
        assert (await api.models.retrieve("small")).model_dump()["root"] == "tiny"
        with pytest.raises(openai.NotFoundError):
            await api.models.retrieve("huge")
    async with client(stack) as http:
        model, _alias = (await http.get("/api/models")).json()["data"]
    assert model["context_window"] == 2_048
    assert model["capabilities"] == ["chat.completions", "streaming"]
    assert model["prices"]["per_1m_tokens"]["output"] == "0.40"
    assert model["prices"]["per_1k_tokens"]["output"] == "0.0004"


def test_a_model_that_calls_tools_says_so() -> None:
    model = Model(name="tiny", path="", pool="default", context_window=99)
    calling = model.model_copy(update={"tool_parser": "hermes"})
    told = [model_object(each, "tiny", "local", 0)["capabilities"] for each in (model, calling)]
    assert told == [["chat.completions", "streaming"], ["chat.completions", "streaming", "tools"]]


async def test_health_docs_and_the_page_need_no_key(stack: Stack) -> None:
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as http:
        assert (await http.get("/healthz")).text == "ok"
        assert (await http.get("/readyz")).text == "ready"
        docs = (await http.get("/docs")).text
        assert "/v1/chat/completions" in docs
        assert "repetition_penalty" in docs
        page = await http.get("/")
        assert page.headers["content-type"].startswith("text/html")
        for text in (docs, page.text):
            assert "//cdn" not in text
            assert 'src="http' not in text
        document = (await http.get("/openapi.json")).json()
        assert "ChatBody" in document["components"]["schemas"]


async def test_what_needs_no_key_is_written_once(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as http:
        first = [(await http.get(path)).content for path in ("/docs", "/openapi.json")]
        monkeypatch.delattr("streams.gateway.http.page_routes._templates")
        monkeypatch.delattr("streams.gateway.http.app.openapi_document")
        assert [(await http.get(path)).content for path in ("/docs", "/openapi.json")] == first


@pytest.mark.parametrize(
    ("headers", "content", "status", "code", "param"),
    [
        ({}, b"{", 400, "invalid_request", None),
        ({}, b"[]", 400, "invalid_request", None),
        ({}, b'{"a": NaN}', 400, "invalid_request", None),
        ({}, b'{"a":' * 10_000 + b"1" + b"}" * 10_000, 400, "invalid_request", None),
        ({}, json.dumps({**HELLO, "n": 10**9}).encode(), 400, "invalid_request", "n"),
        ({}, json.dumps({**HELLO, "max_tokens": 10**9}).encode(), 400, "invalid_request", "max_tokens"),
        ({}, json.dumps({**HELLO, "frobnicate": 1}).encode(), 400, "unsupported_parameter", "frobnicate"),
        ({}, json.dumps({**HELLO, "messages": []}).encode(), 400, "invalid_request", "messages"),
        ({"content-type": "text/plain"}, b"{}", 415, "unsupported_media_type", None),
        ({"content-encoding": "gzip"}, gzip.compress(b"{}"), 415, "unsupported_media_type", None),
        ({}, b" " * 5_000_000, 413, "request_too_large", None),
        ({"authorization": "Bearer sk-wrong"}, b"{}", 401, "invalid_api_key", None),
        ({"authorization": "Basic eDp5"}, b"{}", 401, "invalid_api_key", None),
        ({"authorization": "Bearer " + "k" * 5_000}, b"{}", 401, "invalid_api_key", None),
        ({"authorization": "Bearer \xe9\xff".encode("latin-1").decode("latin-1")}, b"{}", 401, "invalid_api_key", None),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
async def test_bad_input_is_named_in_openais_shape_and_reaches_no_topic(
    stack: Stack, headers: dict[str, str], content: bytes, status: int, code: str, param: str | None
) -> None:
    raw = [
        (k.encode(), v.encode("latin-1")) for k, v in {**AUTH, "content-type": "application/json", **headers}.items()
    ]
    async with httpx.AsyncClient(base_url=stack.url, timeout=60, trust_env=False) as http:
        answer = await http.post("/v1/chat/completions", content=content, headers=raw)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert error["message"]
    if status == 415:
        assert all(name in error["message"] for name in headers), "a header is no param: the message names it"
    assert stack.pipeline.requests() == []


async def test_a_body_of_100_mb_is_refused_without_being_held(stack: Stack) -> None:
    chunk = b" " * 65_536

    async def huge() -> AsyncIterator[bytes]:
        for _ in range(1_600):
            yield chunk

    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with client(stack, **{"content-type": "application/json"}) as http:
        answer = await http.post("/v1/chat/completions", content=huge())
    assert (answer.status_code, answer.headers["connection"]) == (413, "close")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 50_000


@pytest.mark.parametrize("full_of", ["sockets", "requests"])
async def test_a_gateway_full_of_connections_says_so_and_stays_healthy(redis_url: str, full_of: str) -> None:
    settings = gateway_settings(redis_url, f"crowd{full_of}", max_connections=2)
    async with serving(settings, memory_log(settings)) as stack, client(stack) as http:
        async with AsyncExitStack() as opened:
            asking: list[asyncio.Future[httpx.Response]] = []
            for _ in range(2):
                if full_of == "sockets":
                    await opened.enter_async_context(dial(stack))
                else:
                    asking.append(asyncio.ensure_future(http.post("/v1/chat/completions", json=HELLO)))
            if asking:
                await until(lambda: len(stack.pipeline.requests()) == 2, "both are accepted")
            full = await http.get("/v1/models")
            assert (full.status_code, full.json()["error"]["code"]) == (503, "overloaded")
            assert int(full.headers["retry-after-ms"]) >= 1_000
            async with dial(stack) as refused:
                assert json.loads(await refused.recv())["reason"] == "overloaded"
                with pytest.raises(ConnectionClosed) as closed:
                    await refused.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1013
            for path in ("/readyz", "/healthz"):
                assert (await http.get(path)).status_code == 200
            for request in stack.pipeline.requests():
                stack.pipeline.start(request)
                stack.pipeline.end(request, 1)
            await asyncio.gather(*asking)
        await until(lambda: stack.runtime.edge.connections == 0, "all have gone")
        assert (await http.get("/v1/models")).status_code == 200


async def test_a_request_that_no_record_can_hold_is_refused_for_good_and_leaves_nothing(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.log.memory.producer.MAX_RECORD_BYTES", 2_000)
    body = {"model": "small", "messages": [{"role": "user", "content": "x" * 3_000}]}
    async with client(stack) as http:
        answer = await http.post("/v1/chat/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
        assert "retry-after" not in answer.headers
        assert len(stack.runtime.hub) == 0
        answering = asyncio.ensure_future(stack.pipeline.answer(["ok"]))
        assert (await http.post("/v1/chat/completions", json=HELLO)).status_code == 200
        await answering
    assert stack.pipeline.cancels() == []


def test_the_largest_body_fits_a_record_however_it_is_cut_up() -> None:
    """Short messages grow most when every part and default is written out."""
    message = {"role": "assistant", "content": ""}
    messages = [message] * (MAX_MESSAGES - 5) + [{"role": "assistant", "content": ""}] * 5
    body = {"model": "m" * 200, "messages": messages}
    room = MAX_BODY_BYTES - len(json.dumps(body, separators=(",", ":")))
    for each in messages[-5:]:
        each["content"] = "x" * (room // 5)
    chat = parse_chat_request(body)
    request = Request(
        response_id="r" * 100, scope=Scope(tenant_id="t" * 48, traceparent="x" * 55), model=chat.model,
        messages=chat.messages, sampling=chat.sampling, reply_to=ReplyTo(partition=1), accepted_at_ms=2**41,
        deadline_ms=2**41, stage_ms={"gateway": 2**41},
    )  # fmt: skip
    assert MAX_BODY_BYTES - 10 < len(json.dumps(body, separators=(",", ":"))) <= MAX_BODY_BYTES
    assert len(request.encode()) < MAX_RECORD_BYTES - 2_000  # its headers and its batch


LARGE_BODIES: dict[str, Any] = {
    "much text": [{"role": "user", "content": "x" * 100_000}],
    "many objects": [{}] * 20_000,
    "many messages": [{"role": "user", "content": ""}] * 2_000,
    "many numbers": [0] * 30_000,
}


@pytest.mark.parametrize("messages", LARGE_BODIES.values(), ids=LARGE_BODIES)
@pytest.mark.parametrize("transport", ["http", "websocket"])
async def test_a_large_body_is_parsed_while_others_are_served(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, transport: str, messages: list[Any]
) -> None:
    others_served = threading.Event()

    def parse_for_long(raw: bytes | str, *most_values: int) -> dict[str, Any]:
        assert others_served.wait(60), "nobody else was served meanwhile"
        return parse_json_object(raw, *most_values)

    module = "http.answering" if transport == "http" else "websocket.client_messages"
    monkeypatch.setattr(f"streams.gateway.{module}.parse_json_object", parse_for_long)
    body = json.dumps({"model": "small", "messages": messages}, separators=(",", ":"))
    is_answered = isinstance(messages[0], dict) and bool(messages[0])
    assert (len(body) > LARGE_CHARS) is (len(messages) == 1), "the others are no large texts"
    async with client(stack) as http, AsyncExitStack() as opened:
        answering = asyncio.ensure_future(stack.pipeline.answer(["ok"])) if is_answered else None
        if transport == "http":
            headers = {"content-type": "application/json"}
            asking = asyncio.ensure_future(http.post("/v1/chat/completions", content=body, headers=headers))
        else:
            dialled = dial(stack)
            socket = await opened.enter_async_context(dialled)
            await socket.send(f'{{"type":"request","request_id":"r1","body":{body}}}')
        await asyncio.sleep(0.05)
        assert (await http.get("/healthz")).text == "ok"
        others_served.set()
        if answering is not None:
            await answering
        if transport == "http":
            assert (await asking).status_code == (200 if is_answered else 400)
        else:
            said = json.loads(await socket.recv())
            assert (said["type"], said["request_id"]) == ("accepted" if is_answered else "error", "r1")


async def test_unknown_paths_and_methods_answer_in_openais_shape(stack: Stack) -> None:
    async with client(stack) as http:
        for answer, status in ((await http.get("/v1/nothing"), 404), (await http.get("/v1/chat/completions"), 405)):
            assert answer.status_code == status
            assert answer.json()["error"]["type"] == "invalid_request_error"
        for position in ("-1", "1.5", "x", "99999999999999999999"):
            response_id = f"resp_{stack.settings.region}-0_" + "0" * 32
            answer = await http.get(
                f"/v1/chat/completions/{response_id}?stream=true", headers={"last-event-id": position}
            )
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "last-event-id")


async def test_a_raw_half_request_disturbs_nobody(stack: Stack) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nab")
    await writer.drain()
    assert (await reader.read(15)).startswith(b"HTTP/1.1 400")
    writer.close()
    await writer.wait_closed()
    async with client(stack) as http:
        answering = asyncio.ensure_future(stack.pipeline.answer(["ok"]))
        assert (await http.post("/v1/chat/completions", json=HELLO)).status_code == 200
        await answering


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/healthz", 200),
        ("GET", "/v1/models", 200),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/models/huge", 404),
        ("DELETE", "/v1/models", 405),
        ("GET", "/v1/usage?start_time=x", 400),
        ("POST", "/v1/chat/completions", 415),
        ("GET", "/v1/responses/resp_x", 404),
        ("OPTIONS", "/v1/models", 405),
    ],
)
async def test_every_answer_has_an_id_of_its_own(stack: Stack, method: str, path: str, status: int) -> None:
    async with client(stack) as http:
        answers = [await http.request(method, path) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [status] * 2
    ids = {answer.headers["x-request-id"] for answer in answers}
    assert len(ids) == 2
    assert all(each.startswith("req_") for each in ids)


async def test_refusals_without_a_route_have_an_id_too(redis_url: str) -> None:
    settings = gateway_settings(redis_url, "fullid", max_connections=1)
    async with serving(settings, memory_log(settings)) as stack, client(stack) as http:
        async with dial(stack):
            full = await http.get("/v1/models")
        assert (full.status_code, full.headers["x-request-id"][:4]) == (503, "req_")
    async with serving(settings, memory_log(settings)) as stack, client(stack) as http:
        nobody = await http.get("/v1/models", headers={"authorization": "Bearer wrong"})
        assert (nobody.status_code, nobody.headers["x-request-id"][:4]) == (401, "req_")


@pytest.mark.parametrize(
    "path",
    [
        "/healthz",
        "/readyz",
        "/v1/models",
        "/",
        "/operations",
        "/docs",
        "/assets/chat.js",
        "/openapi.json",
        "/v1/nothing",
    ],
)
async def test_head_answers_as_get_does_without_a_body(stack: Stack, path: str) -> None:
    async with client(stack) as http:
        got, asked = await http.get(path), await http.head(path)
        assert (asked.status_code, asked.content) == (got.status_code, b"")
        assert asked.headers["content-type"] == got.headers["content-type"]
        assert asked.headers["content-length"] == got.headers["content-length"]
        assert (await http.get("/healthz")).text == "ok", "the connection goes on"


async def test_head_of_a_stream_watches_nothing(stack: Stack) -> None:
    async with client(stack) as http:
        asking = asyncio.ensure_future(http.post("/v1/chat/completions", json=HELLO))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["a"])
        await until(lambda: stack.runtime.hub.released_tokens == 1, "it runs")
        async with asyncio.timeout(60):
            asked = await http.head(f"/v1/chat/completions/{request.response_id}?stream=true")
        assert (asked.status_code, asked.content) == (200, b"")
        await until(lambda: stack.runtime.hub.viewers == 1, "only who asked for it watches")
        stack.pipeline.end(request, 2)
        await asking


@pytest.mark.parametrize("path", ["/v1/models/", "/v1/models/tiny/", "/healthz/", "/docs/"])
async def test_a_slash_at_the_end_changes_nothing(stack: Stack, path: str) -> None:
    async with client(stack) as http:
        answer = await http.get(path)
        same = await http.get(path.rstrip("/"))
    assert (answer.status_code, answer.content) == (200, same.content)


@pytest.mark.parametrize("header", ["forwarded", "x-forwarded-for", "x-real-ip", "via", "none"])
async def test_metrics_are_on_the_health_port_alone(stack: Stack, header: str) -> None:
    """A proxy on the same machine makes everybody local, and not every proxy says that it is one."""
    async with client(stack, **{header: "203.0.113.9"}) as http:
        assert (await http.get("/metrics")).status_code == 404
