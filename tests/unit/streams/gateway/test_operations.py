"""`/api/operations`: who may ask, what is told, and that nobody is looked at for nothing."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from schemas.brownout import PoolLevel
from schemas.endings import EndingCode
from schemas.worker import WorkerState
from streams.clocks import now_ms
from streams.directory import KeyScope, Role
from streams.gateway.operations import operations
from streams.gateway.operations.eyes import Eyes
from streams.log.memory.watch import MemoryWatch
from streams.log.port import Committed, LogError, TopicPartition
from tests.unit.streams.gateway.gateway_stack import KEY, OTHER_KEY, Stack, until
from tests.unit.streams.gateway.http_clients import HELLO, client


def make_admin(stack: Stack, key: str = KEY) -> None:
    tenant = stack.directory._tenants[key]
    keys = [each.model_copy(update={"role": Role.ADMIN}) for each in tenant.api_keys]
    stack.directory._tenants[key] = tenant.model_copy(update={"api_keys": keys})


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "LOOK_EVERY_S", 0.02)


async def seen(http: httpx.AsyncClient) -> dict[str, Any]:
    """Once the log was looked at."""
    return await until_told(http, lambda told: told["log_state"] == "seen")


async def until_told(http: httpx.AsyncClient, so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            told: dict[str, Any] = (await http.get("/api/operations")).json()
            if so(told):
                return told
            await asyncio.sleep(0.02)


def requests_per_s(told: dict[str, Any]) -> float:
    [found] = [each["records_per_s"] for each in told["topics"] if each["topic"] == "requests"]
    return found or 0.0


def beat(stack: Stack, worker_id: str, **fields: Any) -> None:
    state = WorkerState(
        worker_id=worker_id, pool="default", model="tiny", engine="simulated", state="ready", beat_at_ms=now_ms(),
        lease_ms=600_000, kv_blocks_used=3, kv_blocks_total=10, running=2, max_running=8, waiting=1, **fields,
    )  # fmt: skip
    stack.log.append(stack.settings.topics.workers.name, state.encode(), key=worker_id)


async def test_how_far_a_pool_is_degraded_is_told_with_the_reason(stack: Stack) -> None:
    make_admin(stack)
    topic = stack.settings.topics.brownout.name
    async with client(stack) as http:
        [pool] = (await seen(http))["pools"]
        assert (pool["pool"], pool["level"], pool["since_ms"], pool["why"]) == ("default", 0, None, "")
        beat(stack, "worker-1", prompt_tokens=80, cached_tokens=60)
        beat(stack, "worker-2", prompt_tokens=20)
        for level in (1, 2):
            said = PoolLevel(pool="default", level=level, since_ms=level, why=f"late {level}")
            stack.log.append(topic, said.encode(), key="default")
        stack.log.append(topic, b"no level", key="default")
        told = await until_told(http, lambda told: told["pools"][0]["level"] > 0)
    assert told["pools"] == [
        {
            "pool": "default", "level": 2, "since_ms": 2, "why": "late 2", "workers": 2, "workers_ready": 2,
            "kv_blocks_used": 6, "kv_blocks_total": 20, "prompt_tokens": 100, "cached_tokens": 60,
        }
    ]  # fmt: skip


async def test_which_part_each_tenant_was_given_lately_is_told_look_by_look(stack: Stack) -> None:
    make_admin(stack)
    async with client(stack) as http:
        beat(stack, "worker-1", counts_since_ms=7, given_of={"standard": {"acme": 5_000}})
        assert (await seen(http))["shares"] == []
        given = {"standard": {"acme": 5_300}, "batch": {"umbrella": 100}}
        beat(stack, "worker-1", counts_since_ms=7, given_of=given)
        told = await until_told(http, lambda told: bool(told["shares"]))
    assert told["shares"] == [
        {"pool": "default", "tenant_id": "acme", "share": 0.75, "given": 300},
        {"pool": "default", "tenant_id": "umbrella", "share": 0.25, "given": 100},
    ]


async def test_only_an_administrators_key_is_told(stack: Stack) -> None:
    make_admin(stack, OTHER_KEY)
    async with client(stack) as http:
        for shown, status, code in (
            ({"x-api-key": KEY}, 403, "permission_denied"),
            ({"x-api-key": "sk-wrong"}, 401, "invalid_api_key"),
            ({"authorization": ""}, 401, "invalid_api_key"),
            ({"x-api-key": OTHER_KEY}, 200, None),
        ):
            http.headers.pop("authorization", None)
            answer = await http.get("/api/operations", headers=shown)
            assert answer.status_code == status
            assert answer.headers.get("cache-control") == (None if code else "no-store")
            assert (answer.json().get("error") or {}).get("code") == code
        lent = await http.post("/v1/tokens", headers={"x-api-key": OTHER_KEY}, json={"scopes": ["operations"]})
        token = {"x-api-key": lent.json()["token"]}
        assert (await http.get("/api/operations", headers=token)).status_code == 200
        assert (await http.post("/v1/chat/completions", headers=token, json=HELLO)).status_code == 403
        refused = await http.post("/v1/tokens", headers={"x-api-key": KEY}, json={"scopes": ["operations"]})
        assert (refused.status_code, refused.json()["error"]["param"]) == (403, "scopes")
    assert KeyScope.OPERATIONS not in stack.directory._tenants[KEY].api_keys[0].granted


async def test_what_flows_is_told_and_nothing_that_was_said(stack: Stack) -> None:
    make_admin(stack)
    async with client(stack) as http:
        asked = http.post("/v1/chat/completions", json={**HELLO, "messages": [{"role": "user", "content": "SECRET-Q"}]})
        answering = stack.pipeline.answer(["SECRET-A", "!"])
        _, request = await asyncio.gather(asked, answering)
        failing = http.post("/v1/chat/completions", json=HELLO)
        await asyncio.gather(failing, stack.pipeline.ends(EndingCode.OVERLOADED, message="SECRET-M"))
        beat(
            stack,
            "worker-1",
            tokens_per_second=12.5,
            prompt_tokens=80,
            cached_tokens=60,
            queues={"interactive": {"waiting": 2}, "standard": {"waiting": 4, "oldest_ms": 900}},
            failing={"until_ms": now_ms(), "failed": 11, "attempts": 20},
        )
        beat(stack, "worker-2")
        stack.log.append(stack.settings.topics.workers.name, b"no heartbeat", key="worker-3")
        stack.log.append(stack.settings.topics.workers.name, None, key="worker-2")
        topics = stack.settings.topics
        admission = stack.log.group(f"{stack.settings.region}.admission")
        admission.committed[TopicPartition(topics.requests.name, 0)] = Committed(0)
        admission.committed[TopicPartition(topics.requests.name, 1)] = Committed(0)
        told = await until_told(http, lambda told: bool(told["log_state"] == "seen" and told["workers"]))
        text = (await http.get("/api/operations")).text
    assert "SECRET" not in text
    assert request.response_id not in text
    assert {each["topic"] for each in told["topics"]} >= {"requests", "generated", "responses", "usage", "intake.batch"}
    assert {(each["pool"], each["lane"]) for each in told["lanes"]} == {
        ("default", lane) for lane in ("interactive", "standard", "batch")
    }
    [lane] = [each for each in told["lanes"] if each["lane"] == "standard"]
    assert (lane["waiting"], lane["before"], lane["oldest_ms"]) == (4, 6, 900)
    assert (lane["left_per_s"], lane["wait_ms"]) == (None, None)
    assert told["groups"] == [{"group": "admission", "topic": "requests", "lag": 2}]
    [worker] = told["workers"]
    assert (worker["worker_id"], worker["state"], worker["kv_blocks_used"]) == ("worker-1", "ready", 3)
    assert worker["failing"] == "11 of 20"
    assert (worker["prompt_tokens"], worker["cached_tokens"]) == (80, 60)
    assert told["first_token"]["answers"] == 1
    assert 0 <= told["first_token"]["p50_ms"] == told["first_token"]["p99_ms"]
    assert {each["code"]: each["count"] for each in told["endings"]} == {"completed": 1, "overloaded": 1}
    newest, oldest = told["recent_endings"]
    assert (newest["code"], newest["reason"]) == ("overloaded", "The service is at capacity.")
    assert (oldest["code"], oldest["model"], oldest["completion_tokens"]) == ("completed", "tiny", 2)
    assert told["gateway"]["gateway_id"] == "gateway-1"


async def test_rates_come_with_the_second_look(stack: Stack) -> None:
    make_admin(stack)
    name = stack.settings.topics.requests.name
    async with client(stack) as http:
        await seen(http)
        for _ in range(50):
            stack.log.append(name, b"{}", key="x")
        await until_told(http, lambda told: requests_per_s(told) > 0)


async def test_nobody_looks_while_nobody_asks(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    make_admin(stack)
    monkeypatch.setattr(operations, "LINGER_MS", 100)
    opened: list[Eyes] = []
    closed: list[Eyes] = []
    really_close = Eyes.close
    really_open = stack.runtime._operations._open_eyes

    def open_eyes() -> Eyes:
        opened.append(really_open())
        return opened[-1]

    def close(eyes: Eyes) -> None:
        really_close(eyes)
        closed.append(eyes)

    monkeypatch.setattr(stack.runtime._operations, "_open_eyes", open_eyes)
    monkeypatch.setattr(Eyes, "close", close)
    assert opened == []
    async with client(stack) as http:
        for _ in range(2):
            before = len(opened)
            await seen(http)
            assert len(opened) > before
            await until(lambda: opened == closed, "it looks no more")


async def test_a_log_that_does_not_answer_is_said_and_harms_nothing(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_admin(stack)

    def away(*_: object) -> None:
        raise LogError("away", retriable=True)

    async with client(stack) as http:
        with monkeypatch.context() as broken:
            broken.setattr(stack.runtime._operations, "_open_eyes", away)
            await until_told(http, lambda told: bool(told["log_state"] == "unavailable"))
        await seen(http)
        with monkeypatch.context() as broken:
            broken.setattr(MemoryWatch, "look", away)
            await until_told(http, lambda told: bool(told["log_state"] == "unavailable"))
        await seen(http)
        assert (await http.get("/readyz")).status_code == 200
        assert not stack.running.done()
