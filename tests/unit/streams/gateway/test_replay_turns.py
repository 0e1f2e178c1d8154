"""A tenant that reads back all it can takes nobody else's turn."""

import asyncio
import threading
from typing import Any

import httpx
import pytest
import redis

from schemas.base import Scope
from streams import redis_keys
from streams.at_once import AtOnce, TooManyAtOnce
from streams.gateway.history import log_history, store
from streams.gateway.history.replay import Replay
from tests.unit.streams.gateway.gateway_stack import KEY, OTHER_KEY, Stack, release, started, terminal, until

BETA = Scope(tenant_id="beta")
GREEDY = store.MAX_CONCURRENT_READS + 16


async def ask(stack: Stack, api_key: str, response_id: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {api_key}"}
    async with httpx.AsyncClient(base_url=stack.url, headers=headers, timeout=60, trust_env=False) as http:
        return await http.get(f"/v1/chat/completions/{response_id}")


def text_of(answer: httpx.Response) -> str:
    return str(answer.json()["choices"][0]["message"]["content"])


def answered(stack: Stack) -> str:
    """A response of the other tenant, which stands in the log."""
    response_id = stack.settings.response_ids.mint(0)
    for record in (started(response_id, BETA), release(response_id, BETA, 1, ["fine"]), terminal(response_id, BETA, 2)):
        stack.pipeline.write(response_id, record)
    return response_id


@pytest.fixture
async def ended(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> str:
    """A response of the other tenant that has left memory."""
    monkeypatch.setattr(stack.runtime.gateway._patience, "_patience_ms", 50)
    response_id = answered(stack)
    await until(lambda: stack.runtime.hub.has_ended(response_id), "it has ended")
    await until(lambda: stack.runtime.hub.get(response_id) is None, "it left memory")
    return response_id


async def test_reads_from_redis(stack: Stack, monkeypatch: pytest.MonkeyPatch, ended: str) -> None:
    reading, goes_on = 0, asyncio.Event()
    first = store.RedisHistory._first

    async def slow(history: store.RedisHistory, key: str, response_id: str) -> Any:
        nonlocal reading
        if "acme" in key:
            reading += 1
            await goes_on.wait()
        return await first(history, key, response_id)

    monkeypatch.setattr(store.RedisHistory, "_first", slow)
    greedy = [asyncio.ensure_future(ask(stack, KEY, stack.settings.response_ids.mint(1))) for _ in range(GREEDY)]
    await until(lambda: reading, "one tenant reads")
    answer = await ask(stack, OTHER_KEY, ended)
    assert (answer.status_code, text_of(answer)) == (200, "fine"), answer.text
    assert reading < store.MAX_CONCURRENT_READS
    goes_on.set()
    await asyncio.gather(*greedy)


async def test_reads_from_the_log(stack: Stack, monkeypatch: pytest.MonkeyPatch, ended: str) -> None:
    with redis.Redis.from_url(stack.settings.redis.url) as server:
        assert server.delete(redis_keys.history(stack.settings.region, "beta", ended))
    reading: list[str] = []
    goes_on = threading.Event()
    read_log = log_history.read_log

    def slow(consumer: Any, source: Any, tenant_id: str, *rest: Any) -> Replay:
        reading.append(tenant_id)
        if tenant_id == "acme":
            assert goes_on.wait(60)
        return read_log(consumer, source, tenant_id, *rest)

    monkeypatch.setattr(log_history, "read_log", slow)
    greedy = [asyncio.ensure_future(ask(stack, KEY, stack.settings.response_ids.mint(1))) for _ in range(GREEDY)]
    await until(lambda: "acme" in reading, "one tenant reads")
    answer = await ask(stack, OTHER_KEY, ended)
    assert (answer.status_code, text_of(answer)) == (200, "fine"), answer.text
    assert reading.count("acme") < log_history.MAX_CONCURRENT_LOG_READS
    goes_on.set()
    told = await asyncio.gather(*greedy)
    assert {refused.headers["x-should-retry"] for refused in told} == {"true"}
    assert {409, 503} == {refused.status_code for refused in told}, "one waits for its turn, the others come again"


async def test_who_leaves_holds_its_turn_until_its_thread_is_free(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, reading = threading.Event(), threading.Semaphore(0)

    def slow(*_: Any) -> Replay:
        reading.release()
        assert goes_on.wait(60)
        return Replay()

    monkeypatch.setattr(log_history, "read_log", slow)
    far = stack.runtime.gateway._history._far
    left = asyncio.ensure_future(far.read("acme", stack.settings.response_ids.mint(0), 0))
    await until(lambda: reading.acquire(blocking=False), "it is read")
    left.cancel()
    again = asyncio.ensure_future(far.read("acme", stack.settings.response_ids.mint(0), 0))
    await asyncio.sleep(0.05)
    assert not reading.acquire(blocking=False), "one of a tenant at a time"
    goes_on.set()
    await again
    assert (await asyncio.gather(left, return_exceptions=True))[0].__class__ is asyncio.CancelledError


async def test_what_is_bounded_at_once_is_left_as_it_was_found() -> None:
    questions = AtOnce("questions", 2, at_once_per_tenant=1, present_per_tenant=2)
    async with questions.one("a", 1), questions.one("b", 1):
        for tenant_id in ("a", "c"):
            with pytest.raises(TooManyAtOnce):
                async with questions.one(tenant_id, 0.01):
                    pass
        waiting = asyncio.ensure_future(questions.one("a", 5).__aenter__())
        await asyncio.sleep(0)
        with pytest.raises(TooManyAtOnce, match="tenant"):
            async with questions.one("a", 5):
                pass
        waiting.cancel()
        await asyncio.wait((waiting,))
    async with questions.one("a", 0.01), questions.one("c", 0.01):
        pass
    assert questions._tenants == {}
