"""Chat clients over HTTP: OpenAI's own package and raw server-sent events."""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from agents.admission.billed import NOT_BILLABLE
from schemas.brownout import Brownout
from schemas.endings import EndingCode
from schemas.request import Request
from schemas.usage import DeliveredCount
from streams.gateway.closing import CloseReason
from streams.signing import verify_request
from tests.unit.streams.gateway.gateway_stack import (
    OTHER_KEY,
    SECRET,
    Stack,
    gateway_settings,
    memory_log,
    serving,
    until,
)
from tests.unit.streams.gateway.http_clients import HELLO, client, events_of, sdk, text_of


async def test_openais_package_streams_an_answer_with_usage(stack: Stack) -> None:
    async with sdk(stack) as api:
        answering = asyncio.ensure_future(stack.pipeline.answer(["Par", "is", "."]))
        stream = await api.chat.completions.create(
            model="small", messages=[{"role": "user", "content": "Capital of France?"}], stream=True,
            stream_options={"include_usage": True}, max_tokens=16, user="ann",
        )  # fmt: skip
        chunks = [chunk async for chunk in stream]
    request = await answering
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Paris."
    assert {chunk.id for chunk in chunks} == {request.response_id}
    assert {chunk.model for chunk in chunks} == {"tiny"}
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    usage = chunks[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (4, 3, 7)


async def test_openais_package_gets_a_whole_answer(stack: Stack) -> None:
    async with sdk(stack) as api:
        answering = asyncio.ensure_future(stack.pipeline.answer(["Par", "is", "."]))
        completion = await api.chat.completions.create(model="small", messages=[{"role": "user", "content": "Hi"}])
    request = await answering
    assert completion.choices[0].message.content == "Paris."
    assert completion.id == request.response_id == completion._request_id


async def test_what_is_accepted_is_signed_scoped_and_holds_no_raw_user(stack: Stack) -> None:
    async with client(stack, traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01") as http:
        answering = asyncio.ensure_future(stack.pipeline.answer(["x"]))
        body = {**HELLO, "user": "ann@example.com", "temperature": 0.5, "on_disconnect": "continue"}
        await http.post("/api/chat/completions", json={**body, "prompt_cache_key": "a document"})
    request = await answering
    [record] = stack.log.records(stack.settings.topics.requests.name)
    verify_request([SECRET.encode()], record.topic, dict(record.headers), record.value or b"")
    assert record.key == request.response_id.encode()
    assert b"ann@example.com" not in (record.value or b"")
    assert (request.scope.tenant_id, request.scope.key_id) == ("acme", "k1")
    assert len(request.scope.end_user) == 32
    assert request.scope.traceparent.startswith("00-aaaa")
    assert (request.sampling.temperature, request.on_disconnect) == (0.5, "continue")
    assert request.cache_key == "a document"
    assert request.deadline_ms - request.accepted_at_ms == stack.settings.gateway.request_timeout_ms


async def test_the_status_waits_for_admission_so_a_refusal_is_a_real_status(stack: Stack) -> None:
    limits = {"requests_limit": 10, "requests_remaining": 0, "requests_reset_ms": 1500, "odd\r\nname": 1}
    async with client(stack) as http:
        refusing = asyncio.ensure_future(
            stack.pipeline.ends(EndingCode.RATE_LIMITED_REQUESTS, retry_after_ms=1500, limits=limits)
        )
        answer = await http.post("/v1/chat/completions", json={**HELLO, "stream": True})
    await refusing
    assert answer.status_code == 429
    assert answer.json()["error"]["code"] == "rate_limited_requests"
    assert (answer.headers["retry-after"], answer.headers["retry-after-ms"]) == ("2", "1500")
    assert answer.headers["x-ratelimit-limit-requests"] == "10"
    assert answer.headers["x-ratelimit-remaining-requests"] == "0"
    assert answer.headers["x-ratelimit-reset-requests"] == "1500ms"
    assert answer.headers["x-should-retry"] == "true"


async def test_openais_package_reads_that_nothing_is_taken_while_it_could_not_be_billed(stack: Stack) -> None:
    async with sdk(stack) as api:
        refusing = asyncio.ensure_future(
            stack.pipeline.ends(NOT_BILLABLE.code, message=NOT_BILLABLE.message, retry_after_ms=31_000)
        )
        with pytest.raises(openai.InternalServerError) as raised:
            await api.chat.completions.create(model="small", messages=[{"role": "user", "content": "Hi"}])
    await refusing
    error = raised.value
    assert (error.status_code, error.code, error.type) == (503, "unavailable", "server_error")
    assert "rejected-unavailable: usage cannot be billed at the moment" in str(error)
    headers = error.response.headers
    assert (headers["retry-after-ms"], headers["x-should-retry"]) == ("31000", "true")


async def test_openais_package_reads_what_is_left_of_its_limits_with_an_answer_whole_or_streamed(stack: Stack) -> None:
    limits = {"requests_limit": 10, "requests_remaining": 9, "requests_reset_ms": 6_000, "tokens_remaining": 70}
    expected = {
        "x-ratelimit-limit-requests": "10", "x-ratelimit-remaining-requests": "9",
        "x-ratelimit-reset-requests": "6000ms", "x-ratelimit-remaining-tokens": "70",
    }  # fmt: skip

    def told(headers: httpx.Headers) -> dict[str, str]:
        return {name: value for name, value in headers.items() if name.startswith("x-ratelimit")}

    async with sdk(stack) as api:
        create = api.chat.completions.with_raw_response.create
        for given, wanted in ((limits, expected), ({}, {})):
            answering = asyncio.ensure_future(stack.pipeline.answer(["Par", "is"], limits=given))
            whole = await create(model="small", messages=[{"role": "user", "content": "Hi"}])
            await answering
            assert told(whole.headers) == wanted
        answering = asyncio.ensure_future(stack.pipeline.answer(["Par", "is"], limits=limits))
        streamed = await create(model="small", messages=[{"role": "user", "content": "Hi"}], stream=True)
        chunks = [chunk async for chunk in streamed.parse()]
        await answering
    assert told(streamed.headers) == expected
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Paris"


async def test_who_is_given_less_is_told_in_the_head_whole_or_streamed(stack: Stack) -> None:
    cut = Brownout(level=2, max_tokens=64)

    def told(headers: httpx.Headers) -> dict[str, str]:
        return {name: value for name, value in headers.items() if name.startswith("x-brownout")}

    async with sdk(stack) as api:
        create = api.chat.completions.with_raw_response.create
        for given, wanted in ((cut, {"x-brownout-level": "2", "x-brownout-max-tokens": "64"}), (None, {})):
            answering = asyncio.ensure_future(stack.pipeline.answer(["Par", "is"], brownout=given))
            whole = await create(model="small", messages=[{"role": "user", "content": "Hi"}])
            await answering
            assert told(whole.headers) == wanted
            answering = asyncio.ensure_future(stack.pipeline.answer(["Par", "is"], brownout=given))
            streamed = await create(model="small", messages=[{"role": "user", "content": "Hi"}], stream=True)
            assert len([chunk async for chunk in streamed.parse()]) > 1
            await answering
            assert told(streamed.headers) == wanted
            again = await api.responses.with_raw_response.retrieve(whole.headers["x-request-id"])
            assert told(again.headers) == wanted
            followed = await api.responses.with_raw_response.retrieve(whole.headers["x-request-id"], stream=True)
            assert told(followed.headers) == wanted
            async for _ in followed.parse():
                pass


async def test_who_waits_behind_its_lane_is_told_in_the_head(stack: Stack) -> None:
    async with sdk(stack) as api:
        create = api.chat.completions.with_raw_response.create
        for lowered_from in ("standard", None):
            answering = asyncio.ensure_future(stack.pipeline.answer(["Paris"], lowered_from=lowered_from))
            whole = await create(model="small", messages=[{"role": "user", "content": "Hi"}])
            await answering
            assert whole.headers.get("x-queue-lowered-from") == lowered_from


async def test_openais_package_raises_its_own_errors(stack: Stack) -> None:
    async with sdk(stack) as api:
        for code, kind in (
            (EndingCode.MODEL_NOT_FOUND, openai.NotFoundError),
            (EndingCode.CONTEXT_LENGTH_EXCEEDED, openai.BadRequestError),
            (EndingCode.RATE_LIMITED_TOKENS, openai.RateLimitError),
            (EndingCode.ENGINE_FAILED, openai.InternalServerError),
        ):
            refusing = asyncio.ensure_future(stack.pipeline.ends(code, param="model"))
            with pytest.raises(kind) as error:
                await api.chat.completions.create(model="small", messages=[{"role": "user", "content": "Hi"}])
            await refusing
            assert error.value.code == code.value
            assert error.value.param == "model"


async def test_an_error_after_the_first_token_is_an_error_event(stack: Stack) -> None:
    async with sdk(stack) as api:
        failing = asyncio.ensure_future(stack.pipeline.ends(EndingCode.GENERATION_INTERRUPTED, "Once"))
        stream = await api.chat.completions.create(
            model="small", messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        seen: list[str] = []
        with pytest.raises(openai.APIError) as error:
            await _collect(stream, seen)
        await failing
    assert "".join(seen) == "Once"
    assert error.value.code == "generation_interrupted"


async def _collect(stream: openai.AsyncStream[ChatCompletionChunk], seen: list[str]) -> None:
    async for chunk in stream:
        seen.append(chunk.choices[0].delta.content or "")


async def test_a_halted_answer_finishes_with_content_filter(stack: Stack) -> None:
    async with client(stack) as http:
        halting = asyncio.ensure_future(stack.pipeline.ends(EndingCode.SAFETY_HALTED, "Once"))
        answer = (await http.post("/v1/chat/completions", json=HELLO)).json()
    await halting
    assert answer["choices"][0]["finish_reason"] == "content_filter"
    assert answer["choices"][0]["message"]["content"] == "Once"


async def test_no_admission_in_time_is_503_with_advice_and_cancels(redis_url: str) -> None:
    settings = gateway_settings(redis_url, "slowadmission", admission_timeout_ms=50)
    async with serving(settings, memory_log(settings)) as stack, client(stack) as http:
        answer = await http.post("/v1/chat/completions", json={**HELLO, "on_disconnect": "continue"})
        assert answer.status_code == 503
        assert int(answer.headers["retry-after-ms"]) >= 1_000
        [request] = stack.pipeline.requests()
        await until(stack.pipeline.cancels, "the request is cancelled, whatever its policy")
        assert stack.pipeline.cancels()[0].response_id == request.response_id


async def test_every_event_has_an_id_and_a_client_resumes_after_it(stack: Stack) -> None:
    async with client(stack, accept="text/event-stream") as http:
        answering = asyncio.ensure_future(stack.pipeline.answer(["Once", " upon", " a", " time", "\r\n\r\ndata: x"]))
        whole = await http.post("/v1/chat/completions", json={**HELLO, "stream": True})
        request = await answering
        events = events_of(whole.text)
        assert whole.headers["content-type"].startswith("text/event-stream")
        assert whole.headers["x-request-id"] == request.response_id
        assert "retry: 1000" in whole.text
        assert text_of(events) == "Once upon a time\r\n\r\ndata: x"
        assert events[-1] == ("6", "[DONE]")
        path = f"/v1/chat/completions/{request.response_id}"
        for position in range(6):
            by_header = await http.get(f"{path}?stream=true", headers={"last-event-id": str(position)})
            by_query = await http.get(f"{path}?stream=true&starting_after={position}")
            expected = "".join(["Once", " upon", " a", " time", "\r\n\r\ndata: x"][position:])
            assert text_of(events_of(by_header.text)) == text_of(events_of(by_query.text)) == expected
            assert events_of(by_query.text)[-1] == ("6", "[DONE]")
        not_streamed = await http.get(f"{path}?starting_after=5")
        assert (not_streamed.status_code, not_streamed.json()["error"]["param"]) == (400, "starting_after")
        everything_seen = await http.get(f"{path}?stream=true", headers={"last-event-id": "6"})
        assert everything_seen.status_code == 204
        from_the_future = await http.get(f"{path}?stream=true&starting_after=7")
        assert (from_the_future.status_code, from_the_future.json()["error"]["param"]) == (400, "starting_after")


async def test_two_viewers_follow_one_running_response(stack: Stack) -> None:
    async def watch(path: str) -> str:
        async with client(stack) as http:
            return text_of(events_of((await http.get(path)).text))

    async with client(stack) as http:
        asking = asyncio.ensure_future(http.post("/v1/chat/completions", json={**HELLO, "stream": True}))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["a", "b", "c"])
        await until(lambda: stack.runtime.hub.released_tokens == 3, "the gateway has the tokens")
        path = f"/v1/chat/completions/{request.response_id}?stream=true&starting_after="
        watching = [asyncio.ensure_future(watch(path + str(after))) for after in (0, 2, 3)]
        await until(lambda: stack.runtime.hub.viewers == 4, "all are watching")
        stack.pipeline.release(request, 4, ["d", "e"])
        stack.pipeline.end(request, 6)
        assert [await w for w in watching] == ["abcde", "cde", "de"]
        assert text_of(events_of((await asking).text)) == "abcde"


async def test_who_watches_before_the_start_still_learns_the_model(stack: Stack) -> None:
    async with client(stack) as http:
        asking = asyncio.ensure_future(http.post("/v1/chat/completions", json=HELLO))
        request = await stack.pipeline.next_request()
        watching = asyncio.ensure_future(http.get(f"/v1/chat/completions/{request.response_id}?stream=true"))
        await until(lambda: stack.runtime.hub.viewers == 2, "both wait")
        await asyncio.sleep(0.05)
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["a"])
        stack.pipeline.end(request, 2)
        await asking
        chunks = [json.loads(data) for _, data in events_of((await watching).text) if data != "[DONE]"]
    assert {(chunk["model"], chunk["created"] > 0) for chunk in chunks} == {("tiny", True)}


async def test_a_response_can_be_retrieved_while_it_runs_and_afterwards(stack: Stack) -> None:
    async with client(stack) as http:
        asking = asyncio.ensure_future(http.post("/v1/chat/completions", json=HELLO))
        request = await stack.pipeline.next_request()
        path = f"/v1/chat/completions/{request.response_id}"
        assert (await http.get(path)).json()["status"] == "queued"
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["Hel", "lo"])
        await until(lambda: stack.runtime.hub.released_tokens == 2, "tokens arrive")
        running = (await http.get(path)).json()
        [choice] = running["choices"]
        assert (running["status"], choice["message"]["content"], running["usage"]) == ("in_progress", "Hello", None)
        assert choice["finish_reason"] is None
        stack.pipeline.end(request, 3)
        await asking
        await until(lambda: stack.runtime.hub.get(request.response_id) is None, "it left memory")
        ended = (await http.get(path)).json()
        [choice] = ChatCompletion.model_validate(ended, strict=True).choices
        assert (ended["status"], choice.message.content, ended["sequence_number"]) == ("completed", "Hello", 3)
        assert choice.finish_reason == "stop"
        assert ended["usage"]["completion_tokens"] == 2


async def test_another_tenants_response_is_as_unknown_as_one_that_never_was(stack: Stack) -> None:
    async with client(stack) as http:
        asking = asyncio.ensure_future(http.post("/v1/chat/completions", json=HELLO))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["secret"])
        await until(lambda: stack.runtime.hub.released_tokens == 1, "it runs")
        stranger = {"authorization": f"Bearer {OTHER_KEY}"}
        never = f"{request.response_id[:-10]}0123456789"
        for when in ("running", "ended"):
            if when == "ended":
                stack.pipeline.end(request, 2)
                await asking
                await until(lambda: stack.runtime.hub.get(request.response_id) is None, "it left memory")
            for method, path in (("GET", ""), ("GET", "?stream=true"), ("POST", "/cancel")):
                theirs, unknown = [
                    await http.request(method, f"/v1/responses/{response_id}{path}", headers=stranger)
                    for response_id in (request.response_id, never)
                ]
                assert theirs.status_code == unknown.status_code == 404
                assert theirs.text.replace(request.response_id, "") == unknown.text.replace(never, "")
        assert stack.pipeline.cancels() == []


async def test_what_is_not_known_yet_is_waited_for_and_unknown_for_good_after_a_minute(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience_ms = 150
    monkeypatch.setattr(stack.runtime.gateway._patience, "_patience_ms", patience_ms)
    accepted = stack.settings.response_ids.mint(0)
    paths = (("GET", ""), ("GET", "?stream=true&starting_after=2"), ("POST", "/cancel"))
    async with client(stack) as http:
        for method, path in paths:
            began_s = asyncio.get_running_loop().time()
            answer = await http.request(method, f"/v1/responses/{accepted}{path}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_here_yet")
            assert (answer.headers["x-should-retry"], "retry-after" in answer.headers) == ("true", True)
            assert asyncio.get_running_loop().time() - began_s >= patience_ms / 1_000
        monkeypatch.setattr("streams.gateway.service.patience.YOUNG_MS", -1)
        for method, path in paths:
            answer = await http.request(method, f"/v1/responses/{accepted}{path}")
            assert (answer.status_code, answer.headers["x-should-retry"]) == (404, "false")


async def test_responses_are_bounded_and_their_viewers_do_not_count(redis_url: str) -> None:
    settings = gateway_settings(redis_url, "full", max_open_responses=2)
    async with serving(settings, memory_log(settings)) as stack, client(stack) as http:
        async with AsyncExitStack() as watching:
            asking = asyncio.ensure_future(http.post("/v1/chat/completions", json=HELLO))
            request = await stack.pipeline.next_request()
            stack.pipeline.start(request)
            stack.pipeline.release(request, 1, ["one"])
            await until(lambda: stack.runtime.hub.released_tokens == 1, "it runs")
            for _ in range(3):
                url = f"/v1/responses/{request.response_id}?stream=true"
                await watching.enter_async_context(http.stream("GET", url))
            assert stack.runtime.hub.viewers == 4
            second = asyncio.ensure_future(http.post("/v1/chat/completions", json=HELLO))
            other = await stack.pipeline.next_request()
            full = await http.post("/v1/chat/completions", json=HELLO)
            assert (full.status_code, full.json()["error"]["code"]) == (503, "overloaded")
            for each in (request, other):
                stack.pipeline.start(each)
                stack.pipeline.end(each, 2 if each is request else 1)
            await asyncio.gather(asking, second)
        answering = asyncio.ensure_future(stack.pipeline.answer(["again"]))
        await until(lambda: len(stack.runtime.hub) == 0, "both have left memory")
        assert (await http.post("/v1/chat/completions", json=HELLO)).status_code == 200
        await answering


async def test_cancel_is_idempotent(stack: Stack) -> None:
    async with client(stack) as http:
        asking = asyncio.ensure_future(http.post("/v1/chat/completions", json={**HELLO, "stream": True}))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["a"])
        path = f"/v1/responses/{request.response_id}/cancel"
        assert (await http.post(path)).status_code == 200
        assert [c.reason for c in stack.pipeline.cancels()] == ["client"]
        stack.pipeline.end(request, 2, EndingCode.CANCELLED)
        events = events_of((await asking).text)
        assert json.loads(events[-2][1])["error"]["code"] == "cancelled"
        again = (await http.post(path)).json()
        assert (again["status"], again["output"][0]["content"][0]["text"]) == ("cancelled", "a")
        assert len(stack.pipeline.cancels()) == 1


@pytest.mark.usefixtures("leases_of_a_second")
@pytest.mark.parametrize(("policy", "cancelled"), [("cancel", True), ("continue", False)])
async def test_a_client_that_leaves_detaches_and_its_policy_decides(stack: Stack, policy: str, cancelled: bool) -> None:
    async with client(stack) as http:
        body = {**HELLO, "stream": True, "on_disconnect": policy}
        asking = asyncio.ensure_future(_first_bytes(http, body))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["Once "])  # the first bytes leave with the first text
        await asking
    await until(lambda: stack.runtime.hub.viewers == 0, "the viewer is gone")
    if cancelled:
        await until(stack.pipeline.cancels, "the response is cancelled")
        assert stack.pipeline.cancels()[0].reason == "disconnect"
    else:
        stack.pipeline.release(request, 2, ["still"])
        stack.pipeline.end(request, 3)
        await until(lambda: stack.runtime.hub.get(request.response_id) is None, "it ends without a viewer")
        assert stack.pipeline.cancels() == []


async def _first_bytes(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for _ in answer.aiter_bytes():
            return


async def test_what_a_viewer_got_is_counted(stack: Stack) -> None:
    async with client(stack) as http:
        answering = asyncio.ensure_future(stack.pipeline.answer(["a", "b", "c"]))
        await http.post("/v1/chat/completions", json={**HELLO, "stream": True})
    request = await answering
    usage = stack.settings.topics.usage.name
    await until(lambda: stack.log.records(usage), "a count is written")
    [record] = stack.log.records(usage)
    count = DeliveredCount.model_validate_json(record.value or b"")
    assert (count.response_id, count.delivered_tokens, count.gateway_id) == (request.response_id, 3, "gateway-1")
    when = count.stage_ms
    assert request.accepted_at_ms <= when["acknowledged"] <= when["first_sent"] <= when["sent"] <= when["gateway"]
    assert when["acknowledged"] <= when["ended"] <= when["sent"]


async def test_an_answer_that_moves_away_is_named_and_not_asked_for_again(stack: Stack) -> None:
    """OpenAI's clients repeat a 503 by themselves: it would be generated, and paid, twice."""

    async def move_away() -> Request:
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["Once "])
        await until(lambda: stack.runtime.hub.delivered_tokens == 1, "it is followed")
        stack.runtime.hub.close_partition(request.reply_to.partition, CloseReason.PARTITION_MOVED)
        return request

    async with sdk(stack, max_retries=2) as api, client(stack) as http:
        moving = asyncio.ensure_future(move_away())
        with pytest.raises(openai.InternalServerError) as error:
            await api.chat.completions.create(
                model="small", messages=[{"role": "user", "content": "Hi"}], extra_body={"on_disconnect": "continue"}
            )
        request = await moving
        assert (error.value.status_code, error.value.code) == (503, "partition_moved")
        assert error.value.request_id == request.response_id
        assert "retry-after" not in error.value.response.headers
        stack.pipeline.release(request, 2, ["more"])
        stack.pipeline.end(request, 3)
        await until(lambda: stack.runtime.hub.has_ended(request.response_id), "it goes on")
        state = (await http.get(f"/v1/chat/completions/{request.response_id}")).json()
        assert state["choices"][0]["message"]["content"] == "Once more"
    assert len(stack.pipeline.requests()) == 1
    assert stack.pipeline.cancels() == []
