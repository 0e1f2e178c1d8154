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


@pytest.mark.parametrize("refused_with", [{"conversation": "conv_none"}, {"previous_response_id": "resp_none"}])
async def test_one_that_tries_and_is_refused_for_itself_keeps_nobody_out(
    redis_url: str, refused_with: dict[str, str]
) -> None:
    settings = gateway_settings(redis_url, "triedcircuit", circuit_failures=1, circuit_open_ms=OPEN_MS)
    async with serving(settings, memory_log(settings)) as stack, client(stack) as http:
        circuit = stack.runtime.gateway.circuit
        now_ms = 0
        circuit._clock_ms = lambda: now_ms
        circuit.timed_out(0)
        now_ms = OPEN_MS
        for _ in range(3):
            bad = await http.post("/v1/responses", json={"model": HELLO["model"], "input": "Hi", **refused_with})
            assert bad.status_code in (400, 404), bad.text
            assert is_open(stack) == 1
        answering = asyncio.ensure_future(stack.pipeline.answer(["Paris"]))
        whole = await http.post("/v1/chat/completions", json=HELLO)
        await answering
        assert whole.status_code == 200
        assert is_open(stack) == 0


def circuit_at(now_ms: list[int]) -> Circuit:
    """`now_ms` has the time."""
    settings = GatewaySettings(circuit_failures=1, circuit_open_ms=OPEN_MS)
    return Circuit(settings, Gauge("open", "", registry=None), lambda: now_ms[0])


def test_a_large_request_opens_nothing() -> None:
    """It may take its time by itself."""
    circuit = circuit_at([0])
    circuit.enter(LARGE_BYTES + 1).timed_out()
    circuit.pass_by().timed_out()
    circuit.enter(SMALL)


@pytest.mark.parametrize("size", [SMALL, LARGE_BYTES + 1])
def test_whoever_comes_first_tries_and_its_success_lets_all_in(size: int) -> None:
    now_ms = [0]
    circuit = circuit_at(now_ms)
    circuit.enter(SMALL).timed_out()
    now_ms[0] = OPEN_MS
    tries = circuit.enter(size)
    for other in (SMALL, LARGE_BYTES + 1):
        with pytest.raises(ApiError):
            circuit.enter(other)
    tries.answered()
    tries.close()
    for other in (SMALL, SMALL, LARGE_BYTES + 1):
        circuit.enter(other)


def test_a_large_one_that_tries_in_vain_leaves_it_to_the_next() -> None:
    now_ms = [0]
    circuit = circuit_at(now_ms)
    circuit.enter(SMALL).timed_out()
    now_ms[0] = OPEN_MS
    tries = circuit.enter(LARGE_BYTES + 1)
    tries.timed_out()
    with pytest.raises(ApiError):
        circuit.enter(SMALL)
    tries.close()
    circuit.enter(SMALL)


def test_what_is_taken_in_any_case_lets_all_in_once_it_is_admitted() -> None:
    circuit = circuit_at([0])
    circuit.enter(SMALL).timed_out()
    circuit.pass_by().answered()
    circuit.enter(SMALL)
