"""While nothing is admitted, whoever comes hears so at once; and as soon as something is, nobody does any more."""

import asyncio

import httpx
import pytest
from prometheus_client import Gauge

from streams.gateway.errors import ApiError
from streams.gateway.service import acceptance
from streams.gateway.service.circuit import LARGE_BYTES, Circuit
from streams.log.producer_thread import ProducerThread
from streams.settings import GatewaySettings
from tests.unit.streams.gateway.gateway_stack import Stack, gateway_settings, memory_log, serving
from tests.unit.streams.gateway.http_clients import HELLO, client

OPEN_MS = 300_000
SMALL = 100


async def refused(http: httpx.AsyncClient, **headers: str) -> httpx.Response:
    answer = await http.post("/v1/chat/completions", json=HELLO, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    return answer


def is_open(stack: Stack) -> float:
    return float(stack.runtime.gateway.metrics.circuit_is_open._value.get())


async def test_where_nothing_is_admitted_who_comes_hears_it_at_once(redis_url: str) -> None:
    settings = gateway_settings(
        redis_url, "opencircuit", admission_timeout_ms=50, circuit_failures=3, circuit_open_ms=OPEN_MS
    )
    async with serving(settings, memory_log(settings)) as stack, client(stack) as http:
        for _ in range(3):
            await refused(http)
        assert len(stack.pipeline.requests()) == 3
        at_once = await refused(http)
        assert int(at_once.headers["retry-after-ms"]) > OPEN_MS / 2
        assert at_once.headers["x-should-retry"] == "true"
        assert len(stack.pipeline.requests()) == 3, "nothing was written for it"
        assert is_open(stack) == 1
        await refused(http, **{"idempotency-key": "k"})
        assert len(stack.pipeline.requests()) == 4, "what a key stands for may be there already"


async def test_where_the_log_takes_nothing_who_comes_hears_it_at_once(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def say_nothing(*_arguments: object, **_named: object) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(acceptance, "ACKNOWLEDGE_TIMEOUT_S", 0.02)
    monkeypatch.setattr(ProducerThread, "send", say_nothing)
    settings = gateway_settings(redis_url, "silentlog", circuit_failures=3, circuit_open_ms=OPEN_MS)
    async with serving(settings, memory_log(settings)) as stack, client(stack) as http:
        for number in range(3):
            assert is_open(stack) == 0, number
            await refused(http)
        at_once = await refused(http)
        assert int(at_once.headers["retry-after-ms"]) > OPEN_MS / 2
        assert is_open(stack) == 1
        monkeypatch.undo()


async def test_one_that_is_admitted_lets_all_in(redis_url: str) -> None:
    settings = gateway_settings(redis_url, "closedcircuit", circuit_failures=1, circuit_open_ms=OPEN_MS)
    async with serving(settings, memory_log(settings)) as stack, client(stack) as http:
        circuit = stack.runtime.gateway.circuit
        now_ms = 0
        circuit._clock_ms = lambda: now_ms
        circuit.timed_out(0)
        await refused(http)
        now_ms = OPEN_MS
        for _ in range(3):
            answering = asyncio.ensure_future(stack.pipeline.answer(["Paris"]))
            whole = await http.post("/v1/chat/completions", json=HELLO)
            await answering
            assert whole.json()["choices"][0]["message"]["content"] == "Paris"
        assert is_open(stack) == 0


def test_a_large_request_neither_opens_it_nor_tries() -> None:
    settings = GatewaySettings(circuit_failures=1, circuit_open_ms=OPEN_MS)
    now_ms = 0
    circuit = Circuit(settings, Gauge("open", "", registry=None), lambda: now_ms)
    circuit.timed_out(circuit.enter(LARGE_BYTES + 1))
    assert circuit.enter(SMALL) == 0
    circuit.timed_out(0)
    now_ms = OPEN_MS
    for size in (LARGE_BYTES + 1, LARGE_BYTES + 1):
        with pytest.raises(ApiError):
            circuit.enter(size)
    assert circuit.enter(SMALL) == OPEN_MS, "a small one tries"
    with pytest.raises(ApiError):
        circuit.enter(SMALL)
    circuit.answered(OPEN_MS)
    assert circuit.enter(LARGE_BYTES + 1) is None
