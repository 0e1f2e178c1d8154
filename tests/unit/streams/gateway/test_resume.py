"""Clients that come back to a running response, or to one that has ended: after a restart, and too early."""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest
import redis
from websockets.asyncio.client import connect

from schemas.endings import EndingCode
from schemas.responses import Started
from schemas.websocket import SERVER_MESSAGE, ErrorMessage
from streams import redis_keys
from streams.gateway import runtime
from streams.gateway.fan_out.hub import Hub
from streams.gateway.fan_out.pump import Pump
from streams.gateway.history.log_history import LogHistory
from streams.gateway.history.replay import Replay
from streams.gateway.history.store import STARTED_FROM_LOG, History, RedisHistory
from streams.gateway.history.unavailable import HistoryUnavailable
from streams.log.port import Committed, TopicPartition
from streams.settings import Settings
from tests.unit.streams.gateway.gateway_stack import (
    KEY,
    OTHER_KEY,
    Stack,
    memory_log,
    release,
    serving,
    started,
    terminal,
    unread,
    until,
)
from tests.unit.streams.gateway.replays import ACME, HELLO, entry, http, span, text_after


async def test_a_restarted_gateway_continues_a_running_response(settings: Settings) -> None:
    log = memory_log(settings)
    async with AsyncExitStack() as served:
        stack = await served.enter_async_context(serving(settings, log))
        async with http(stack) as client:
            asking = asyncio.ensure_future(client.post("/v1/chat/completions", json={**HELLO, "stream": True}))
            request = await stack.pipeline.next_request()
            stack.pipeline.start(request)
            stack.pipeline.release(request, 1, ["one ", "two "])
            await until(lambda: stack.runtime.hub.released_tokens == 2, "tokens arrive")
            await served.aclose()
            assert "going_away" in (await asking).text
    async with serving(settings, log) as stack:
        watching = asyncio.ensure_future(text_after(stack, request.response_id, 1))
        await until(lambda: stack.runtime.hub.viewers == 1, "the client is back")
        stack.pipeline.release(request, 3, ["three"])
        stack.pipeline.end(request, 4)
        answer = await watching
    assert '"two "' in answer["text"]
    assert '"three"' in answer["text"]
    assert '"one "' not in answer["text"]
    assert answer["text"].endswith('"sequence_number":4}\n\ndata: [DONE]\n\n')


@pytest.mark.usefixtures("leases_of_a_second")
@pytest.mark.parametrize("lost", [False, True], ids=["history", "log"])
@pytest.mark.parametrize("policy", ["cancel", "continue"])
async def test_a_response_whose_client_went_with_the_old_gateway_still_has_its_policy(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, policy: str, lost: bool
) -> None:
    """`Started` is committed, so the new gateway does not read it again: history knows it, or the log."""
    log = memory_log(settings)
    async with AsyncExitStack() as served:
        stack = await served.enter_async_context(serving(settings, log, disconnect_grace_ms=60_000))
        async with http(stack) as client:
            body = {**HELLO, "stream": True, "on_disconnect": policy}
            asking = asyncio.ensure_future(client.post("/v1/chat/completions", json=body))
            request = await stack.pipeline.next_request()
            stack.pipeline.start(request)
            stack.pipeline.release(request, 1, ["one "])
            source = TopicPartition(settings.topics.responses.name, request.reply_to.partition)
            await until(lambda: log.committed("gateways", source).offset == 2, "Started is committed")
            await served.aclose()
            assert "going_away" in (await asking).text
    if lost:
        with redis.Redis.from_url(settings.redis.url) as server:
            server.delete(redis_keys.history(settings.region, "acme", request.response_id))
    met: list[str] = []
    meet = Hub.meet

    def listen(hub: Hub, began: Started, at_ms: int) -> None:
        meet(hub, began, at_ms)
        met.append(began.response_id)

    monkeypatch.setattr(Hub, "meet", listen)
    async with serving(settings, log) as stack:
        assert stack.pipeline.cancels() == []
        stack.pipeline.release(request, 2, ["two "])
        if policy == "cancel":
            await until(stack.pipeline.cancels, "the response is cancelled")
            assert stack.pipeline.cancels()[0].response_id == request.response_id
        else:
            await until(lambda: met == [request.response_id], "it is known")
            stack.pipeline.end(request, 3)
            await until(lambda: stack.runtime.hub.has_ended(request.response_id), "it ends by itself")
            assert stack.pipeline.cancels() == []


@pytest.mark.usefixtures("leases_of_a_second")
@pytest.mark.parametrize("fails", [False, True], ids=["", "log fails for a while"])
async def test_each_of_many_responses_that_history_has_lost_keeps_its_policy(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """The log is asked about a few at once."""
    monkeypatch.setattr(runtime, "SWEEP_S", 0.01)
    log = memory_log(settings)
    source = TopicPartition(settings.topics.responses.name, 0)
    ids = [settings.response_ids.mint(0) for _ in range(6 * STARTED_FROM_LOG)]
    for response_id in ids:
        log.append(source.topic, started(response_id, ACME, "cancel").encode(), partition=0)
    log.commit(log.group("gateways"), {source: Committed(len(ids))})
    failures = 10 * STARTED_FROM_LOG if fails else 0
    read = LogHistory.read

    async def fail_at_first(*arguments: Any) -> Replay:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise HistoryUnavailable("away")
        return await read(*arguments)

    monkeypatch.setattr(LogHistory, "read", fail_at_first)
    async with serving(settings, log) as stack:
        for response_id in ids:
            stack.pipeline.write(response_id, release(response_id, ACME, 5, ["e"]))
        await until(lambda: len(stack.pipeline.cancels()) >= len(ids), "each is cancelled")
        assert {cancel.response_id for cancel in stack.pipeline.cancels()} == set(ids)


@pytest.mark.parametrize("is_known", [False, True], ids=["new to memory", "known to memory"])
async def test_after_a_restart_no_token_is_skipped_by_a_position_that_does_not_exist(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """History holds two tokens, and the response goes on."""
    response_id = stack.settings.response_ids.mint(0)
    await stack.runtime.gateway._history.append([entry(response_id, span(1, "ab"), with_start=True, is_first=True)])
    if is_known:
        stack.pipeline.write(response_id, started(response_id, ACME))
        await until(lambda: stack.runtime.hub.get(response_id) is not None, "it is seen")
    with monkeypatch.context() as patched:
        patched.setattr(stack.runtime.gateway._patience, "_patience_ms", 100)
        beyond = await text_after(stack, response_id, 3)
    assert (beyond["status"], "not_here_yet" in beyond["text"]) == (503, True)
    # Of what was shown before the restart, the last may be read only after its viewer is back.
    early = asyncio.ensure_future(text_after(stack, response_id, 3))
    await asyncio.sleep(0.05)
    stack.pipeline.write(response_id, release(response_id, ACME, 2, ["b", "c"]))
    await until(lambda: stack.runtime.hub.viewers == 1, "the client is back")
    stack.pipeline.write(response_id, release(response_id, ACME, 4, ["d"]))
    stack.pipeline.write(response_id, terminal(response_id, ACME, 5))
    answer = await early
    assert '"d"' in answer["text"]
    assert '"c"' not in answer["text"]


def counted_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids for which history has answered, from now on: what came of it is decided before anybody else runs."""
    reads: list[str] = []
    read = RedisHistory.read

    async def count(history: RedisHistory, tenant_id: str, response_id: str, *rest: Any, **more: Any) -> Replay:
        replay = await read(history, tenant_id, response_id, *rest, **more)
        reads.append(response_id)
        return replay

    monkeypatch.setattr(RedisHistory, "read", count)
    return reads


async def test_who_saw_more_than_a_gateway_that_was_just_restarted_waits_for_its_partition_and_then_for_its_records(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    response_id = stack.settings.response_ids.mint(0)
    await stack.runtime.gateway._history.append([entry(response_id, span(1, "ab"), with_start=True, is_first=True)])
    reads = counted_reads(monkeypatch)
    with monkeypatch.context() as starting:
        unread(starting, 0, 1)
        back = asyncio.ensure_future(text_after(stack, response_id, 3))
        await until(lambda: len(reads) == 1, "it is looked for")
    await until(lambda: len(reads) == 2, "it is looked for again once the partition is read")
    stack.pipeline.write(response_id, release(response_id, ACME, 3, ["c", "d"]))
    stack.pipeline.write(response_id, terminal(response_id, ACME, 5))
    answer = await back
    assert (answer["status"], '"d"' in answer["text"]) == (200, True)


async def test_a_position_that_may_yet_be_known_is_never_refused_for_good(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack.runtime.gateway._patience, "_patience_ms", 100)
    response_id = stack.settings.response_ids.mint(0)
    await stack.runtime.gateway._history.append([entry(response_id, span(1, "ab"), with_start=True, is_first=True)])
    async with http(stack) as client:
        answer = await client.get(f"/v1/chat/completions/{response_id}?stream=true&starting_after=3")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_here_yet")
    assert (answer.headers["x-should-retry"], int(answer.headers["retry-after-ms"]) >= 1_000) == ("true", True)
    headers = {"authorization": f"Bearer {KEY}"}
    async with connect(stack.websocket_url, additional_headers=headers, proxy=None) as socket:
        await socket.send(json.dumps({"type": "resume", "response_id": response_id, "starting_after": 3}))
        refused = SERVER_MESSAGE.validate_json(await socket.recv())
    assert isinstance(refused, ErrorMessage)
    assert (refused.error.code, refused.resumable, refused.retry_after_ms is not None) == ("not_here_yet", True, True)


async def test_who_comes_back_to_a_running_response_costs_history_one_look(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    response_id = stack.settings.response_ids.mint(0)
    await stack.runtime.gateway._history.append([entry(response_id, span(1, "ab"), with_start=True, is_first=True)])
    reads = counted_reads(monkeypatch)
    back = asyncio.ensure_future(text_after(stack, response_id, 1))
    await until(lambda: stack.runtime.hub.viewers == 1, "the client is back")
    stack.pipeline.write(response_id, release(response_id, ACME, 3, ["c"]))
    stack.pipeline.write(response_id, terminal(response_id, ACME, 4))
    assert [f'"{text}"' in (await back)["text"] for text in ("ab", "b", "c")] == [False, True, True]
    assert reads == [response_id]


@pytest.mark.parametrize("where", ["memory", "another gateway"])
async def test_a_cancel_needs_no_replay(stack: Stack, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    async def late(*_: Any, **__: Any) -> None:
        raise HistoryUnavailable("late")

    async with http(stack) as client:
        if where == "memory":
            asking = asyncio.ensure_future(client.post("/v1/chat/completions", json=HELLO))
            request = await stack.pipeline.next_request()
            stack.pipeline.start(request)
            stack.pipeline.release(request, 1, ["a", "b"])
            await until(lambda: (s := stack.runtime.hub.get(request.response_id)) and s.trimmed, "it is in history")
            response_id = request.response_id
        else:
            response_id = stack.settings.response_ids.mint(0)
            near = stack.runtime.gateway._history._near
            await near.append([entry(response_id, span(1, "ab"), with_start=True, is_first=True)])
            await near.append([entry(response_id, span(3, "c"))])
            monkeypatch.setattr(Pump, "owned", [1])
        monkeypatch.setattr(History, "read", late)
        answer = await client.post(f"/v1/responses/{response_id}/cancel")
        assert (answer.status_code, answer.json()["status"], answer.json()["output"]) == (200, "in_progress", [])
        [cancel] = stack.pipeline.cancels()
        assert (cancel.response_id, cancel.reason, cancel.scope.tenant_id) == (response_id, "client", "acme")
        other = {"authorization": f"Bearer {OTHER_KEY}"}
        assert (await client.post(f"/v1/responses/{response_id}/cancel", headers=other)).status_code in (404, 409)
        assert len(stack.pipeline.cancels()) == 1
        if where == "memory":
            stack.pipeline.end(request, 3, EndingCode.CANCELLED)
            await asking


async def test_what_has_ended_elsewhere_is_not_cancelled(stack: Stack) -> None:
    response_id = stack.settings.response_ids.mint(0)
    near = stack.runtime.gateway._history._near
    await near.append([entry(response_id, span(1, "ab"), with_start=True, is_first=True)])
    await near.append([entry(response_id, end=3)])
    async with http(stack) as client:
        answer = await client.post(f"/v1/responses/{response_id}/cancel")
    [item] = answer.json()["output"]
    assert (answer.json()["status"], item["content"][0]["text"]) == ("completed", "ab")
    assert stack.pipeline.cancels() == []
