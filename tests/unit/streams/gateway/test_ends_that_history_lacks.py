"""What Redis holds of a response looks as if it ran, and it has ended: whoever comes back is told the end."""

from contextlib import AsyncExitStack
from typing import Any

import pytest
from redis.asyncio.client import Pipeline, Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from streams.gateway.fan_out.pump import Pump
from streams.gateway.history import replay as replay_module
from streams.gateway.history import store
from streams.ids import parse_response_id
from streams.log.memory import MemoryLog
from streams.log.port import Committed, TopicPartition
from streams.settings import Settings
from tests.unit.streams.gateway.gateway_stack import Stack, memory_log, release, serving, started, terminal, until
from tests.unit.streams.gateway.replays import ACME, entry, http, span
from tests.unit.streams.gateway.socket_clients import hear_until_terminal, resuming


class Outage:
    """Redis takes nothing while it lasts. What has ended is left to the log at once."""

    def __init__(self, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
        self._hub = stack.runtime.hub
        self._patch = monkeypatch.context()
        self._hub.backlog._max_ended = 0

    def __enter__(self) -> None:
        async def fail(*_: Any, **__: Any) -> None:
            raise RedisConnectionError("away")

        patch = self._patch.__enter__()
        patch.setattr(Redis, "eval", fail)
        patch.setattr(Pipeline, "execute", fail)

    def __exit__(self, *_: object) -> None:
        self._patch.__exit__(None, None, None)


def committed(log: MemoryLog, settings: Settings, response_id: str) -> int | None:
    source = TopicPartition(settings.topics.responses.name, parse_response_id(response_id).partition)
    return log.committed("gateways", source).offset


async def begun(stack: Stack) -> str:
    """A response of which history holds two tokens."""
    response_id = stack.settings.response_ids.mint(0)
    stack.pipeline.write(response_id, started(response_id, ACME))
    stack.pipeline.write(response_id, release(response_id, ACME, 1, ["a", "b"]))
    await until(lambda: committed(stack.log, stack.settings, response_id) == 2, "two tokens stand in history")
    return response_id


async def end(stack: Stack, response_id: str, tokens: str) -> None:
    """Its end is read, and leaves memory for the log alone."""
    hub = stack.runtime.hub
    if tokens:
        stack.pipeline.write(response_id, release(response_id, ACME, 3, list(tokens)))
    stack.pipeline.write(response_id, terminal(response_id, ACME, 3 + len(tokens)))
    await until(lambda: hub.has_ended(response_id) and hub.get(response_id) is None, "it has left memory")


@pytest.mark.parametrize("tokens", ["", "cd"], ids=["lacks its end", "lacks text too"])
@pytest.mark.parametrize("comes_back", [True, False], ids=["Redis answers again", "the gateway dies first"])
async def test_who_comes_back_after_a_restart_is_told_an_end_that_was_left_to_the_log(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, comes_back: bool, tokens: str
) -> None:
    log = memory_log(settings)
    async with AsyncExitStack() as served:
        stack = await served.enter_async_context(serving(settings, log))
        response_id = await begun(stack)
        with Outage(stack, monkeypatch):
            await end(stack, response_id, tokens)
            if not comes_back:
                await served.aclose()
        if comes_back:
            all_read = 3 + bool(tokens)
            await until(lambda: committed(log, settings, response_id) == all_read, "it is not read again")
    async with serving(settings, log) as stack, resuming(stack, response_id, 1) as client:
        assert (await hear_until_terminal(client))[1] == "b" + tokens


async def test_while_history_lacks_what_was_left_to_the_log_nothing_is_committed(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where nothing is left to append: a gateway that dies would never tell."""
    response_id = await begun(stack)
    flushes = 0
    flush = Pump.flush

    async def count(pump: Pump) -> None:
        nonlocal flushes
        await flush(pump)
        flushes += 1

    monkeypatch.setattr(Pump, "flush", count)
    with Outage(stack, monkeypatch):
        await end(stack, response_id, "")
        seen = flushes
        await until(lambda: flushes >= seen + 3, "it was tried")
        assert committed(stack.log, stack.settings, response_id) == 2
    await until(lambda: committed(stack.log, stack.settings, response_id) == 3, "history knows")


async def test_what_was_left_to_the_log_has_ended_at_every_gateway(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    response_id = await begun(stack)
    with Outage(stack, monkeypatch):
        await end(stack, response_id, "")
    await until(lambda: committed(stack.log, stack.settings, response_id) == 3, "history knows")
    stack.runtime.hub._ended.clear()
    monkeypatch.setattr(Pump, "owned", [1])
    async with http(stack) as client:
        answer = (await client.get(f"/v1/chat/completions/{response_id}")).json()
    assert (answer["status"], answer["choices"][0]["message"]["content"]) == ("completed", "ab")


async def test_the_gateway_that_left_it_knows_so_before_redis_does(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has forgotten by now that the response has ended: so many have since."""
    response_id = await begun(stack)
    with Outage(stack, monkeypatch):
        await end(stack, response_id, "")
        stack.runtime.hub._ended.clear()
        async with resuming(stack, response_id, 0) as client:
            assert (await hear_until_terminal(client))[1] == "ab"


async def test_what_runs_beside_what_was_left_to_the_log_is_followed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = memory_log(settings)
    async with serving(settings, log) as stack:
        left, running = await begun(stack), settings.response_ids.mint(0)
        stack.pipeline.write(running, started(running, ACME))
        stack.pipeline.write(running, release(running, ACME, 1, ["x"]))
        await until(lambda: committed(log, settings, running) == 4, "it stands in history")
        with Outage(stack, monkeypatch):
            await end(stack, left, "")
        await until(lambda: committed(log, settings, left) == 5, "history knows")
    async with serving(settings, log) as stack, resuming(stack, running, 0) as client:
        await until(lambda: stack.runtime.hub.viewers == 1, "the client is back")
        stack.pipeline.write(running, release(running, ACME, 2, ["y"]))
        stack.pipeline.write(running, terminal(running, ACME, 3))
        assert (await hear_until_terminal(client))[1] == "xy"
        assert stack.runtime.gateway._history.log_reads == 1


@pytest.mark.parametrize("late", [1, 2, 9])
async def test_the_end_of_a_long_answer_is_found_before_what_an_old_owner_wrote_late(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    monkeypatch.setattr(replay_module, "PIECE_BYTES", 10_000)
    monkeypatch.setattr(store, "ENTRIES_AT_ONCE", 4)
    response_id = stack.settings.response_ids.mint(0)
    tokens = "".join(chr(ord("a") + number % 26) for number in range(200))
    near = stack.runtime.gateway._history._near
    for first in range(1, 201, 5):
        part = span(first, tokens[first - 1 : first + 4])
        await near.append([entry(response_id, part, with_start=first == 1, is_first=first == 1)])
    await near.append([entry(response_id, end=201)])
    for number in range(late):
        await near.append([entry(response_id, span(100 + number, tokens[99 + number :]))])
    async with resuming(stack, response_id, 0) as client:
        assert (await hear_until_terminal(client))[1] == tokens
    assert stack.runtime.gateway._history.log_reads == 0


async def test_what_redis_loses_while_it_is_read_is_told_by_the_log(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read of it is a gap-free beginning, and nothing says that more stood there."""
    monkeypatch.setattr(store, "ENTRIES_AT_ONCE", 4)
    log, response_id = memory_log(settings), settings.response_ids.mint(0)
    source = TopicPartition(settings.topics.responses.name, 0)
    tokens = "abcdefghij"
    for record in (
        started(response_id, ACME), release(response_id, ACME, 1, list(tokens)), terminal(response_id, ACME, 11)
    ):  # fmt: skip
        log.append(source.topic, record.encode(), partition=0)
    log.commit(log.group("gateways"), {source: Committed(3)})
    first = store.RedisHistory._first

    async def read_and_lose(near: store.RedisHistory, key: str, response_id: str) -> Any:
        entries = await first(near, key, response_id)
        await near._client.delete(key)
        return entries

    async with serving(settings, log) as stack:
        near = stack.runtime.gateway._history._near
        for number, token in enumerate(tokens, 1):
            await near.append([entry(response_id, span(number, token), with_start=number == 1, is_first=number == 1)])
        await near.append([entry(response_id, end=11)])
        monkeypatch.setattr(store.RedisHistory, "_first", read_and_lose)
        async with resuming(stack, response_id, 0) as client:
            assert (await hear_until_terminal(client))[1] == tokens
