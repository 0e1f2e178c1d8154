"""What Anthropic's package makes of every way to fail: its own errors, asked again where that costs nothing."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import anthropic
import pytest

from schemas.endings import ENDINGS, EndingCode
from schemas.request import Request
from streams.gateway.closing import CloseReason
from tests.unit.streams.gateway.gateway_stack import (
    Stack,
    gateway_settings,
    memory_log,
    serving,
    until,
)
from tests.unit.streams.gateway.http_clients import client
from tests.unit.streams.gateway.messages_clients import HELLO, HI, package


async def test_a_wrong_key_is_anthropics_own_error(stack: Stack) -> None:
    async with package(stack, api_key="wrong") as api:
        for ask in (api.messages.create, api.messages.count_tokens):
            given = HELLO if ask == api.messages.create else {"model": "small", "messages": HI}
            with pytest.raises(anthropic.AuthenticationError) as raised:
                await ask(**given)
            assert raised.value.type == "authentication_error"
            assert raised.value.request_id == raised.value.response.headers["x-request-id"]
            assert raised.value.body["request_id"] == raised.value.request_id  # type: ignore[index]


@pytest.mark.parametrize("code", EndingCode)
async def test_it_asks_again_where_the_catalogue_says_so_and_nowhere_else(stack: Stack, code: EndingCode) -> None:
    rule = ENDINGS[code]

    async def end() -> None:
        while True:
            await stack.pipeline.ends(code, param="model", retry_after_ms=1)

    ending = asyncio.ensure_future(end())
    async with package(stack, max_retries=1) as api:
        if rule.is_error:
            with pytest.raises(anthropic.APIStatusError) as raised:
                await api.messages.create(**HELLO)
            error = raised.value
            assert (error.status_code, error.error_code, error.api_message) == (rule.status, code.value, rule.message)
            assert error.request_id == error.body["request_id"]  # type: ignore[index]
            assert error.body["error"]["param"] == "model"  # type: ignore[index]
        else:
            assert (await api.messages.create(**HELLO)).type == "message"
    ending.cancel()
    assert len(stack.pipeline.requests()) == (2 if rule.retryable else 1)


@pytest.mark.parametrize(
    ("code", "kind", "told"),
    [
        (EndingCode.MODEL_NOT_FOUND, anthropic.NotFoundError, "not_found_error"),
        (EndingCode.CONTEXT_LENGTH_EXCEEDED, anthropic.BadRequestError, "invalid_request_error"),
        (EndingCode.RATE_LIMITED_TOKENS, anthropic.RateLimitError, "rate_limit_error"),
        (EndingCode.ENGINE_FAILED, anthropic.InternalServerError, "api_error"),
        (EndingCode.OVERLOADED, anthropic.InternalServerError, "overloaded_error"),
    ],
)
async def test_the_package_raises_its_own_errors(
    stack: Stack, api: anthropic.AsyncAnthropic, code: EndingCode, kind: type[anthropic.APIStatusError], told: str
) -> None:
    for stream in (False, True):
        ending = asyncio.ensure_future(stack.pipeline.ends(code))
        with pytest.raises(kind) as raised:
            await api.messages.create(**HELLO, stream=stream)
        await ending
        assert raised.value.type == told


async def test_an_error_after_the_first_token_is_an_error_event(stack: Stack, api: anthropic.AsyncAnthropic) -> None:
    failing = asyncio.ensure_future(stack.pipeline.ends(EndingCode.GENERATION_INTERRUPTED, "Once"))
    seen: list[str] = []
    with pytest.raises(anthropic.APIStatusError) as raised:
        await read_texts(api, seen)
    await failing
    assert seen == ["Once"]
    assert (raised.value.type, raised.value.error_code) == ("api_error", "generation_interrupted")


async def read_texts(api: anthropic.AsyncAnthropic, seen: list[str]) -> None:
    async with api.messages.stream(**HELLO) as stream:
        async for text in stream.text_stream:
            seen.append(text)


async def test_limits_are_told_in_anthropics_names(stack: Stack) -> None:
    limits = {"requests_limit": 10, "requests_remaining": 0, "requests_reset_ms": 1_500, "tokens_limit": 7}
    async with client(stack) as http:
        ending = asyncio.ensure_future(
            stack.pipeline.ends(EndingCode.RATE_LIMITED_REQUESTS, limits=limits, retry_after_ms=1_500)
        )
        refused = await http.post("/v1/messages", json=HELLO)
        await ending
    told = [refused.headers[name] for name in ("retry-after", "retry-after-ms", "x-should-retry")]
    assert (refused.status_code, told) == (429, ["2", "1500", "true"])
    names = [name for name in refused.headers if "ratelimit" in name]
    assert sorted(names) == [
        "anthropic-ratelimit-requests-limit", "anthropic-ratelimit-requests-remaining",
        "anthropic-ratelimit-requests-reset", "anthropic-ratelimit-tokens-limit",
    ]  # fmt: skip
    reset = datetime.fromisoformat(refused.headers["anthropic-ratelimit-requests-reset"])
    assert 0 < (reset - datetime.now(UTC)).total_seconds() + 1 < 5


async def test_what_is_wrong_with_a_body_is_named_in_anthropics_shape(stack: Stack) -> None:
    async with client(stack) as http:
        for path in ("/v1/messages", "/v1/messages/"):
            picture = {"role": "user", "content": [{"type": "image"}]}
            answer = await http.post(path, json={**HELLO, "messages": [picture]})
            told = answer.json()
            assert (answer.status_code, told["type"], told["error"]["type"]) == (400, "error", "invalid_request_error")
            assert told["error"]["param"] == "messages.0.content.0.type"
            assert told["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
        wrong = [
            await http.get("/v1/messages"),
            await http.get("/v1/messages/nothing/at/all"),
            await http.post("/v1/messages", content=b"{", headers={"content-type": "application/json"}),
            await http.post("/v1/messages", content=b"{}"),
            await http.post("/v1/messages", content=b" " * 5_000_000, headers={"content-type": "application/json"}),
        ]
        assert [(answer.status_code, answer.json()["error"]["type"]) for answer in wrong] == [
            (405, "invalid_request_error"), (404, "not_found_error"), (400, "invalid_request_error"),
            (415, "invalid_request_error"), (413, "request_too_large"),
        ]  # fmt: skip
        assert "request-id" not in (await http.get("/v1/models")).headers


async def test_a_full_gateway_says_so_in_anthropics_shape(redis_url: str) -> None:
    settings = gateway_settings(redis_url, "fullmessages", max_connections=1)
    async with serving(settings, memory_log(settings)) as stack, client(stack) as http, package(stack) as api:
        asking = asyncio.ensure_future(http.post("/v1/messages", json=HELLO))
        request = await stack.pipeline.next_request()
        with pytest.raises(anthropic.InternalServerError) as raised:
            await api.messages.create(**HELLO)
        assert (raised.value.status_code, raised.value.type) == (503, "overloaded_error")
        assert raised.value.response.headers["x-should-retry"] == "true"
        assert raised.value.request_id is not None
        stack.pipeline.start(request)
        stack.pipeline.end(request, 1)
        assert (await asking).json()["content"] == []


async def test_an_answer_that_moves_away_is_named_and_not_asked_for_again(stack: Stack) -> None:
    async def move_away() -> Request:
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["Once "])
        await until(lambda: stack.runtime.hub.delivered_tokens == 1, "it is followed")
        stack.runtime.hub.close_partition(request.reply_to.partition, CloseReason.PARTITION_MOVED)
        return request

    async with package(stack, max_retries=2) as api:
        moving = asyncio.ensure_future(move_away())
        with pytest.raises(anthropic.InternalServerError) as raised:
            await api.messages.create(**HELLO, extra_body={"on_disconnect": "continue"})
        request = await moving
    assert (raised.value.status_code, raised.value.type) == (503, "api_error")
    assert (raised.value.error_code, raised.value.request_id) == ("partition_moved", request.response_id)
    assert len(stack.pipeline.requests()) == 1


async def test_a_viewer_that_is_given_up_is_told_in_an_error_event(stack: Stack, api: anthropic.AsyncAnthropic) -> None:
    async def move_away() -> None:
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["Once "])
        await until(lambda: stack.runtime.hub.delivered_tokens == 1, "it is followed")
        stack.runtime.hub.close_partition(request.reply_to.partition, CloseReason.PARTITION_MOVED)

    moving = asyncio.ensure_future(move_away())
    with pytest.raises(anthropic.APIStatusError) as raised:
        await read_texts(api, [])
    await moving
    assert (raised.value.type, raised.value.error_code) == ("api_error", "partition_moved")


@pytest.mark.parametrize(
    ("wrong", "status", "kind", "param"),
    [
        ({"model": "gpt-9"}, 404, "not_found_error", "model"),
        ({"max_tokens": 5}, 400, "invalid_request_error", "max_tokens"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"system": "w" * 262_145}, 400, "invalid_request_error", "messages"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_what_cannot_be_counted_is_refused_by_name(
    stack: Stack, wrong: dict[str, Any], status: int, kind: str, param: str
) -> None:
    async with client(stack) as http:
        answer = await http.post("/v1/messages/count_tokens", json={"model": "small", "messages": HI, **wrong})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (status, kind, param)
