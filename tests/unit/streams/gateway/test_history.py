"""Replay: packed entries on a real Redis, the log behind them, and offsets that never run ahead of either."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis

from deploy.local.plan import history_command
from schemas.base import Scope
from schemas.endings import EndingCode
from schemas.responses import Started, Terminal
from streams import redis_keys
from streams.clocks import now_ms
from streams.gateway.fan_out.delivery import Follower
from streams.gateway.fan_out.spans import Span, memory_bytes
from streams.gateway.fan_out.stream import Behind, Stream
from streams.gateway.history import replay as replay_module
from streams.gateway.history.log_history import LogHistory
from streams.gateway.history.replay import Replay, UnreadableEntry, pack
from streams.gateway.history.store import History, RedisHistory, connect_history
from streams.gateway.history.unavailable import HistoryUnavailable
from streams.log.memory import MemoryLog
from streams.log.port import TopicPartition
from streams.settings import RedisSettings, Settings
from tests.servers import free_ports, server
from tests.servers import until as wait_until
from tests.unit.streams.gateway.gateway_stack import (
    MemoryClients,
    Stack,
    memory_log,
    release,
    serving,
    started,
    terminal,
    until,
)
from tests.unit.streams.gateway.replays import ACME, HELLO, entry, http, span, text_after


def is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
async def near(settings: Settings) -> AsyncIterator[RedisHistory]:
    client = connect_history(settings.redis)
    yield RedisHistory(client, settings.region, retention_s=100, response_timeout_ms=50_000)
    await client.aclose()


async def test_entries_are_read_back_cut_at_any_token(near: RedisHistory, settings: Settings) -> None:
    response_id = settings.response_ids.mint(0)
    await near.append([entry(response_id, span(1, "abc"), with_start=True, is_first=True)])
    await near.append([entry(response_id, span(4, "de")), entry(settings.response_ids.mint(0), span(1, "x"))])
    await near.append([entry(response_id, end=6)])
    for after in range(6):
        replay = await near.read("acme", response_id, after)
        assert "".join(s.text for s in replay.spans) == "abcde"[after:]
        assert (replay.gap, replay.terminal is not None, replay.last) == (False, True, max(after, 5))


async def test_repeated_and_overlapping_entries_tell_each_token_once(near: RedisHistory, settings: Settings) -> None:
    response_id = settings.response_ids.mint(0)
    for spans in ([span(1, "abc")], [span(1, "abc")], [span(2, "bcde")], [span(4, "de")]):
        await near.append([entry(response_id, *spans, with_start=True)])
    replay = await near.read("acme", response_id, 1)
    assert "".join(s.text for s in replay.spans) == "bcde"


async def test_a_missing_entry_is_a_gap_and_nothing_is_skipped(near: RedisHistory, settings: Settings) -> None:
    response_id = settings.response_ids.mint(0)
    await near.append([entry(response_id, span(1, "ab"), span(4, "de"), with_start=True)])
    replay = await near.read("acme", response_id, 0)
    assert (replay.gap, replay.last) == (True, 2)
    assert not (await near.read("acme", response_id, 3)).gap


async def test_what_redis_answered_while_the_loop_was_late_is_told(settings: Settings) -> None:
    """Else all who come back to a gateway that is busy for half a second are told that there is no replay."""
    response_id = settings.response_ids.mint(0)
    near_settings = settings.redis.model_copy(update={"timeout_ms": 250})
    async with connect_history(near_settings) as client:
        near = RedisHistory(client, settings.region, retention_s=100, response_timeout_ms=50_000)
        await near.append([entry(response_id, span(1, "ab"), with_start=True, end=3)])
        for turns in range(1, 8):  # Whatever it was about to do.
            read = asyncio.ensure_future(near.read("acme", response_id, 0))
            for _ in range(turns):
                await asyncio.sleep(0)
            time.sleep(0.3)  # noqa: ASYNC251 - as a loop that has too much to do
            assert (await read).terminal is not None


async def test_another_tenants_entries_are_not_found_and_entries_expire(
    near: RedisHistory, settings: Settings, redis_url: str
) -> None:
    response_id = settings.response_ids.mint(0)
    await near.append([entry(response_id, span(1, "ab"), with_start=True, is_first=True)])
    assert not (await near.read("beta", response_id, 0)).known
    with redis.Redis.from_url(redis_url) as client:
        assert 100 < int(client.ttl(near.key("acme", response_id))) <= 150
        await near.append([entry(response_id, end=3)])
        assert int(client.ttl(near.key("acme", response_id))) <= 100


async def test_a_slice_is_one_command_that_renews_no_other_expiry(
    near: RedisHistory, settings: Settings, redis_url: str
) -> None:
    """An answer to each entry would cost more than packing it."""
    begins, goes_on, ends = (settings.response_ids.mint(0) for _ in range(3))
    await near.append([entry(i, span(1, "ab"), with_start=True, is_first=True) for i in (goes_on, ends)])
    with redis.Redis.from_url(redis_url) as client:
        client.expire(near.key("acme", goes_on), 50)
        before = client.info("commandstats")["cmdstat_eval"]["calls"]
        await near.append([
            entry(begins, span(1, "x"), with_start=True, is_first=True), entry(goes_on, span(3, "cd")),
            entry(ends, end=3),
        ])  # fmt: skip
        assert client.info("commandstats")["cmdstat_eval"]["calls"] == before + 1
        ttls = [int(client.ttl(near.key("acme", i))) for i in (begins, goes_on, ends)]
    assert ttls[0] > 100 >= ttls[2] > 50 >= ttls[1]
    assert [(await near.read("acme", i, 0)).last for i in (begins, goes_on, ends)] == [1, 4, 2]


async def test_a_restarted_gateway_gives_300_running_responses_back_at_once(
    near: RedisHistory, settings: Settings
) -> None:
    """Who comes back together takes turns: nobody is refused, nobody sent to the log, and appending goes on."""
    ids = [settings.response_ids.mint(number % 2) for number in range(300)]
    await near.append([entry(i, span(1, "ab"), with_start=True, is_first=True) for i in ids])
    far = LogHistory(MemoryClients(memory_log(settings)).reader, settings.topics.responses.name)
    history = History(near, far)
    reads = [asyncio.ensure_future(history.read("acme", i, 1)) for i in ids]
    await asyncio.sleep(0)
    await history.append([entry(ids[0], span(3, "c"))])
    replays = await asyncio.gather(*reads)
    assert ["".join(s.text for s in replay.spans)[:1] for replay in replays if replay is not None] == ["b"] * 300
    assert history.log_reads == 0
    far.close()


async def test_a_crowd_that_the_log_cannot_serve_is_told_to_come_again(
    near: RedisHistory, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.gateway.history.store.READ_TURN_TIMEOUT_S", 0.0)
    far = LogHistory(MemoryClients(memory_log(settings)).reader, settings.topics.responses.name)
    reads = [History(near, far).read("acme", settings.response_ids.mint(0), 0) for _ in range(100)]
    refused = [r for r in await asyncio.gather(*reads, return_exceptions=True) if isinstance(r, BaseException)]
    assert refused
    assert all(isinstance(error, HistoryUnavailable) and error.is_transient for error in refused)
    far.close()


def test_entries_of_another_format_are_said_to_be_unreadable() -> None:
    for raw in (b"", b"{}", b"[2,null,[],null]", b"[1,null,[[1]],null]", b'[1,{"a":1},[],null]'):
        with pytest.raises(UnreadableEntry):
            Replay().add_packed(raw)
    Replay().add_packed(pack(None, [], None))


async def test_when_history_is_full_the_oldest_goes_and_the_log_tells_it(settings: Settings, tmp_path: Path) -> None:
    [port] = free_ports(1)
    full = RedisSettings(url="redis://127.0.0.1:1/0", history_url=f"redis://127.0.0.1:{port}/0", timeout_ms=5_000)
    oldest = settings.response_ids.mint(0)
    log = log_with(settings, oldest, "abcde")
    with server(history_command(tmp_path, port, max_memory="8mb"), tmp_path / "output.log"):
        wait_until(lambda: is_listening(port), "redis-server listens")
        client = connect_history(full)
        near = RedisHistory(client, settings.region, retention_s=100, response_timeout_ms=50_000)
        await near.append([entry(oldest, span(1, "abcde"), with_start=True, is_first=True)])
        assert (await near.read("acme", oldest, 0)).last == 5
        await asyncio.sleep(1.1)  # Redis knows in seconds how long a key was idle
        for _ in range(400):  # more than twice what it may hold
            newest = settings.response_ids.mint(0)
            await near.append([entry(newest, span(1, "x" * 10_000), with_start=True, end=10_001, is_first=True)])
        assert (await near.read("acme", newest, 0)).terminal is not None
        assert not (await near.read("acme", oldest, 0)).known
        await near.append([entry(oldest, end=6)])
        far = LogHistory(MemoryClients(log).reader, settings.topics.responses.name)
        replay = await History(near, far).read("acme", oldest, 1)
        assert replay is not None
        assert replay.terminal is not None
        assert "".join(s.text for s in replay.spans) == "bcde"
        far.close()
        await client.aclose()


def log_with(settings: Settings, response_id: str, tokens: str, *, other_tenant: bool = False) -> MemoryLog:
    log = memory_log(settings)
    topic = settings.topics.responses.name
    scope = Scope(tenant_id="beta") if other_tenant else ACME
    log.append(topic, b"not json, but " + response_id.encode())
    log.append(topic, started(response_id, scope).encode())
    for number, token in enumerate(tokens, 1):
        log.append(topic, release(response_id, scope, number, [token]).encode())
        log.append(topic, release(settings.response_ids.mint(0), scope, number, ["?"]).encode())
    log.append(topic, terminal(response_id, scope, len(tokens) + 1).encode())
    return log


async def test_the_log_tells_what_redis_lost(near: RedisHistory, settings: Settings) -> None:
    response_id = settings.response_ids.mint(0)
    log = log_with(settings, response_id, "abcde")
    far = LogHistory(MemoryClients(log).reader, settings.topics.responses.name)
    history = History(near, far)
    replay = await history.read("acme", response_id, 2)
    assert replay is not None
    assert "".join(s.text for s in replay.spans) == "cde"
    assert replay.terminal is not None
    assert await history.read("acme", settings.response_ids.mint(0), 0) is None
    far.close()


@pytest.mark.parametrize("source", ["redis", "log"])
@pytest.mark.parametrize("after", [0, 7, 199])
async def test_a_long_answer_is_read_back_in_pieces_of_bounded_memory(
    near: RedisHistory, settings: Settings, monkeypatch: pytest.MonkeyPatch, source: str, after: int
) -> None:
    monkeypatch.setattr(replay_module, "PIECE_BYTES", 10_000)
    tokens = [chr(ord("a") + number % 26) for number in range(200)]
    response_id = settings.response_ids.mint(0)
    if source == "redis":
        for number, token in enumerate(tokens, 1):
            await near.append([entry(response_id, span(number, token), with_start=number == 1, is_first=number == 1)])
        await near.append([entry(response_id, end=201)])
    log = log_with(settings, response_id, "".join(tokens))
    far = LogHistory(MemoryClients(log).reader, settings.topics.responses.name)
    history = History(near, far)
    replay = await history.read("acme", response_id, after)
    assert replay is not None
    assert (replay.is_partial, replay.terminal is not None) == (after < 199, True)
    follower = Follower(history, "acme")
    follower.show(replay)
    text, pieces, terminal = "", 1, None
    while terminal is None:
        event = follower.poll()
        if isinstance(event, Span):
            text += event.text
        elif isinstance(event, Behind):
            await follower.catch_up()
            pieces += 1
            held = [event for event in follower._replayed if isinstance(event, Span)]
            assert memory_bytes(held) <= 11_000
        elif isinstance(event, Terminal):
            terminal = event
        else:
            assert isinstance(event, Started)
            assert after == 0
    assert text == "".join(tokens[after:])
    assert pieces == (1 if after == 199 else 7)
    assert terminal.sequence_number == 201
    far.close()


async def test_an_entry_that_is_larger_than_a_piece_is_read_back_in_several(
    near: RedisHistory, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that was said at once, after it was held back, may stand in one."""
    monkeypatch.setattr(replay_module, "PIECE_BYTES", 2_000)
    text = "".join(chr(ord("a") + number % 26) for number in range(200))
    response_id = settings.response_ids.mint(0)
    for first in (1, 101):
        part = span(first, text[first - 1 : first + 99])
        await near.append([entry(response_id, part, with_start=first == 1, is_first=first == 1)])
    await near.append([entry(response_id, end=201)])
    pieces = [await near.read("acme", response_id, 0)]
    while pieces[-1].is_partial:
        pieces.append(await near.read("acme", response_id, pieces[-1].last, pieces[-1].rest))
    assert "".join(each.text for piece in pieces for each in piece.spans) == text
    assert max(memory_bytes(piece.spans) for piece in pieces) <= 2_000
    assert len(pieces) == 6
    assert {piece.terminal.sequence_number for piece in pieces if piece.terminal is not None} == {201}


@pytest.mark.parametrize("redis_fails", [False, True])
async def test_a_job_takes_no_place_of_those_whose_beginning_the_log_can_be_asked_for(
    near: RedisHistory, settings: Settings, monkeypatch: pytest.MonkeyPatch, redis_fails: bool
) -> None:
    """Where to look for it in the log, its id does not tell."""

    async def fail(*_: object) -> None:
        raise HistoryUnavailable("away")

    if redis_fails:
        monkeypatch.setattr(RedisHistory, "started", fail)
    response_id = settings.response_ids.mint(0)
    log = log_with(settings, response_id, "abcde")
    far = LogHistory(MemoryClients(log).reader, settings.topics.responses.name)
    jobs = [settings.response_ids.derive(2, "acme", "batch", str(number), at_ms=now_ms()) for number in range(9)]
    streams = [Stream(each, 0, ACME, None, 0) for each in (*jobs, response_id)]
    beginnings = await History(near, far).started(streams)
    unknown, late = ([], jobs) if redis_fails else (jobs, [])
    assert (list(beginnings.found), beginnings.unknown, beginnings.late) == ([response_id], unknown, late)
    far.close()


async def test_the_log_tells_nothing_to_another_tenant(near: RedisHistory, settings: Settings) -> None:
    response_id = settings.response_ids.mint(0)
    log = log_with(settings, response_id, "abcde", other_tenant=True)
    far = LogHistory(MemoryClients(log).reader, settings.topics.responses.name)
    assert await History(near, far).read("acme", response_id, 0) is None
    far.close()


async def test_what_neither_has_any_more_is_said_to_be_unavailable(near: RedisHistory, settings: Settings) -> None:
    response_id = settings.response_ids.mint(0)
    log = log_with(settings, response_id, "abcde")
    log.delete_records(TopicPartition(settings.topics.responses.name, 0), 5)
    far = LogHistory(MemoryClients(log).reader, settings.topics.responses.name)
    with pytest.raises(HistoryUnavailable) as unavailable:
        await History(near, far).read("acme", response_id, 0)
    assert not unavailable.value.is_transient
    far.close()


async def test_an_end_that_is_not_in_history_yet_sends_nobody_to_the_log(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory has the end, Redis what precedes it."""
    async with http(stack) as client:
        asking = asyncio.ensure_future(client.post("/v1/chat/completions", json={**HELLO, "stream": True}))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["a", "b"])
        await until(lambda: (s := stack.runtime.hub.get(request.response_id)) and s.trimmed, "it is in history")

        async def late(*_: Any) -> None:
            raise HistoryUnavailable("late")

        with monkeypatch.context() as patched:
            patched.setattr(RedisHistory, "append", late)
            stack.pipeline.release(request, 3, ["c"])
            stack.pipeline.end(request, 4)
            await asking
            read = (await client.get(f"/v1/chat/completions/{request.response_id}")).json()
        assert (read["status"], read["choices"][0]["message"]["content"]) == ("completed", "abc")
    assert stack.runtime.gateway._history.log_reads == 0


async def test_without_redis_answers_flow_nothing_is_committed_and_the_log_replays(settings: Settings) -> None:
    gone = settings.model_copy(update={"redis": RedisSettings(url="redis://127.0.0.1:1/0", timeout_ms=50)})
    log = memory_log(gone)
    async with serving(gone, log) as stack, http(stack) as client:
        answering = asyncio.ensure_future(stack.pipeline.answer(["a", "b", "c"]))
        answer = await client.post("/v1/chat/completions", json=HELLO)
        request = await answering
        assert answer.json()["choices"][0]["message"]["content"] == "abc"
        replay = await text_after(stack, request.response_id, 1)
        assert '"b' in replay["text"]
        assert '"a"' not in replay["text"]
        topic = gone.topics.responses.name
        committed = [log.committed("gateways", TopicPartition(topic, p)).offset for p in range(2)]
        assert committed == [None, None]


async def test_neither_what_has_ended_nor_a_job_takes_the_place_of_a_request_while_history_is_away(
    settings: Settings,
) -> None:
    edge = settings.gateway.model_copy(update={"max_open_responses": 2})
    redis = RedisSettings(url="redis://127.0.0.1:1/0", timeout_ms=50)
    gone = settings.model_copy(update={"redis": redis, "gateway": edge})
    async with serving(gone, memory_log(gone)) as stack, http(stack) as client:
        for number in range(3):
            job = gone.response_ids.derive(2, "acme", "intake.batch", str(number), at_ms=0)
            stack.pipeline.write(job, started(job, ACME))
        await until(lambda: len(stack.runtime.hub) == 3, "the jobs are seen")
        for _ in range(4):
            answering = asyncio.ensure_future(stack.pipeline.answer(["fine"]))
            answer = await client.post("/v1/chat/completions", json=HELLO)
            assert answer.status_code == 200, answer.text
            await answering


async def test_offsets_follow_history(stack: Stack, redis_url: str) -> None:
    async with http(stack) as client:
        answering = asyncio.ensure_future(stack.pipeline.answer(["a", "b"]))
        await client.post("/v1/chat/completions", json=HELLO)
        request = await answering
    partition = int(request.response_id.split("-")[1].split("_")[0])
    source = TopicPartition(stack.settings.topics.responses.name, partition)
    await until(lambda: stack.log.committed("gateways", source).offset == 4, "everything is committed")
    with redis.Redis.from_url(redis_url) as client:
        assert client.exists(redis_keys.history(stack.settings.region, "acme", request.response_id))


async def test_an_unreadable_record_goes_to_dead_letters_and_the_others_flow(stack: Stack) -> None:
    topic = stack.settings.topics.responses.name
    for partition in range(2):
        stack.log.append(topic, b'{"type":"release","schema_version":9}', partition=partition)
    async with http(stack) as client:
        answering = asyncio.ensure_future(stack.pipeline.answer(["fine"]))
        answer = await client.post("/v1/chat/completions", json=HELLO)
        await answering
    assert answer.json()["choices"][0]["message"]["content"] == "fine"
    letters = stack.settings.topics.dead_letters.name
    await until(lambda: len(stack.log.records(letters)) == 2, "the dead letters are written")
    assert all(b"unknown_version" in (record.value or b"") for record in stack.log.records(letters))


async def test_a_cancelled_response_stays_cancelled_on_replay(stack: Stack) -> None:
    async with http(stack) as client:
        asking = asyncio.ensure_future(client.post("/v1/chat/completions", json=HELLO))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.end(request, 1, EndingCode.CANCELLED)
        assert (await asking).status_code == 499
    assert now_ms() >= request.accepted_at_ms
    assert "cancelled" in (await text_after(stack, request.response_id, 0))["text"]
