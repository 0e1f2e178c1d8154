"""What OpenAI's package makes of every way to end: it asks again exactly where that costs nobody anything."""

import asyncio

import openai
import pytest

from schemas.endings import ENDINGS, EndingCode
from tests.unit.streams.gateway.gateway_stack import Stack
from tests.unit.streams.gateway.http_clients import HELLO, client, sdk

ASKED_AGAIN_UNTOLD = {408, 409, 429, *range(500, 600)}
"""Statuses that clients repeat by themselves where no header says otherwise."""


@pytest.mark.parametrize("code", EndingCode)
async def test_it_asks_again_where_the_catalogue_says_so_and_nowhere_else(stack: Stack, code: EndingCode) -> None:
    rule = ENDINGS[code]

    async def end() -> None:
        while True:
            request = await stack.pipeline.next_request()
            stack.pipeline.start(request)
            stack.pipeline.end(request, 1, code, retry_after_ms=1)

    ending = asyncio.ensure_future(end())
    async with sdk(stack, max_retries=1) as api:
        asking = api.chat.completions.create(model="small", messages=[{"role": "user", "content": "Hi"}])
        if rule.is_error:
            with pytest.raises(openai.APIStatusError) as raised:
                await asking
            error = raised.value
            assert (error.status_code, error.code) == (rule.status, code.value)
            told, advised = error.response.headers["x-should-retry"], "retry-after-ms" in error.response.headers
            assert (told, advised) == (("true", True) if rule.retryable else ("false", False))
        else:
            await asking
    ending.cancel()
    assert len(stack.pipeline.requests()) == (2 if rule.retryable else 1)


@pytest.mark.parametrize("code", EndingCode)
def test_what_is_billed_is_not_to_be_asked_for_again(code: EndingCode) -> None:
    rule = ENDINGS[code]
    assert not (rule.retryable and rule.billed)
    if rule.retryable:
        assert rule.status in ASKED_AGAIN_UNTOLD, "clients that know no header come again too"
    if not rule.is_error:
        assert rule.status == 200


async def test_every_error_of_the_surface_says_whether_to_ask_again(stack: Stack) -> None:
    async with client(stack) as http:
        answers = [
            await http.post("/v1/chat/completions", json={**HELLO, "messages": []}),
            await http.post("/v1/chat/completions", json=HELLO, headers={"authorization": "Bearer wrong"}),
            await http.get("/v1/responses/resp_x"),
            await http.get("/v1/usage?start_time=x"),
            await http.get("/v1/nothing"),
            await http.get("/v1/chat/completions"),
        ]
    assert [answer.headers.get("x-should-retry") for answer in answers] == ["false"] * len(answers)
