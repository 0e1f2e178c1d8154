"""Gateways that die between a key and its answer, two of them at once, and what they stand on gone away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from schemas.endings import EndingCode
from schemas.request import Request
from streams.clocks import now_ms
from streams.gateway.idempotency.decision import DECIDED_ONCE_MS, TRIED_WITHIN_MS
from streams.gateway.idempotency.keyed import CHATS, digest_of
from streams.gateway.idempotency.memory import MemoryIdempotencyKeys
from streams.gateway.idempotency.port import KEPT_MS, Claim, Held
from streams.gateway.service import acceptance, resumption, stored_turns
from streams.gateway.service.ports import ACKNOWLEDGE_TIMEOUT_S
from streams.gateway.stored.memory import MemoryStoredResponses
from streams.log.memory import MemoryLog
from streams.log.port import LogError, ProducerQueueFull
from streams.log.producer_thread import ProducerThread
from streams.settings import Settings
from tests.unit.streams.gateway.gateway_stack import Pipeline, Stack, memory_log, serving, until
from tests.unit.streams.gateway.http_clients import HELLO, client
from tests.unit.streams.gateway.stored_stories import error_of, forget_replay, never
from tests.unit.streams.gateway.test_responses import HELLO as RESPONSE

PATH = f"/v1/{CHATS}"
KEYED = {"idempotency-key": "k"}


def hasty(settings: Settings, **gateway: Any) -> Settings:
    """Who asks for what is not known yet is told so soon."""
    edge = {"admission_timeout_ms": 50, **gateway}
    return settings.model_copy(update={"gateway": settings.gateway.model_copy(update=edge)})


def later(keys: MemoryIdempotencyKeys, passed_ms: int) -> None:
    keys.clock = lambda: now_ms() + passed_ms


@asynccontextmanager
async def asking(settings: Settings, log: MemoryLog, keys: MemoryIdempotencyKeys, **more: Any) -> AsyncIterator[Any]:
    async with serving(settings, log, keys=keys, **more) as stack, client(stack, **KEYED) as http:
        yield stack, http


def requests_of(log: MemoryLog, settings: Settings) -> list[str]:
    return [request.response_id for request in Pipeline(log, settings).requests()]


async def claimed(settings: Settings, keys: MemoryIdempotencyKeys, body: dict[str, Any] = HELLO) -> str:
    """By a gateway that died before it wrote the request to the log; the response id."""
    response_id = settings.response_ids.mint(0)
    await keys.claim(Claim("acme", "k", digest_of(CHATS, body), response_id))
    return response_id


async def answer_next(stack: Stack) -> Request:
    return await stack.pipeline.answer(["Par", "is"])


@pytest.mark.parametrize("is_old", [False, True], ids=["young", "older than a minute"])
async def test_killed_before_the_log_had_it_the_next_one_writes_it_under_the_same_id(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    if is_old:
        monkeypatch.setattr(resumption, "is_young", never)
    log, keys = memory_log(settings), MemoryIdempotencyKeys()
    response_id = await claimed(settings, keys)
    async with asking(hasty(settings), log, keys) as (_, http):
        refused = await http.post(PATH, json=HELLO)
        assert (error_of(refused)[:2], refused.headers["x-should-retry"]) == ((503, "not_here_yet"), "true")
        assert (await http.post(PATH, json={**HELLO, "n": 2})).status_code == 409
    assert requests_of(log, settings) == [], "whoever claimed it may be about to write it"
    later(keys, TRIED_WITHIN_MS)
    async with asking(settings, log, keys) as (stack, http):
        answering = asyncio.ensure_future(answer_next(stack))
        told = [await http.post(PATH, json=HELLO) for _ in range(2)]
        await answering
    assert [(each.status_code, each.json()["id"]) for each in told] == [(200, response_id)] * 2
    assert requests_of(log, settings) == [response_id]


async def test_of_several_that_come_for_it_one_writes_it(settings: Settings) -> None:
    log, keys = memory_log(settings), MemoryIdempotencyKeys()
    response_id = await claimed(settings, keys)
    later(keys, TRIED_WITHIN_MS)
    async with asking(settings, log, keys) as (stack, http):
        posts = [asyncio.ensure_future(http.post(PATH, json=HELLO)) for _ in range(4)]
        await answer_next(stack)
        assert {answer.json()["id"] for answer in await asyncio.gather(*posts)} == {response_id}
    assert requests_of(log, settings) == [response_id]


async def test_what_nobody_can_write_again_safely_is_final(settings: Settings) -> None:
    """Admission may have forgotten that it was answered."""
    log, keys = memory_log(settings), MemoryIdempotencyKeys()
    await claimed(settings, keys)
    later(keys, DECIDED_ONCE_MS)
    async with asking(hasty(settings), log, keys) as (stack, http):
        refused = await http.post(PATH, json=HELLO)
        assert error_of(refused)[:2] == (409, "idempotency_key_unknown")
        assert refused.headers["x-should-retry"] == "false"
        later(keys, KEPT_MS)
        answering = asyncio.ensure_future(stack.pipeline.ends(EndingCode.INVALID_REQUEST))
        assert (await http.post(PATH, json=HELLO)).status_code == 400, "after a day it is another key"
        await answering


class Unheard:
    """The log takes a request, and the gateway does not hear of it in time; or it hears that it did not."""

    def __init__(self, settings: Settings, monkeypatch: pytest.MonkeyPatch, error: LogError | None = None) -> None:
        self.is_deaf = True
        self._patch = monkeypatch
        send = ProducerThread.send
        topic = settings.topics.requests.name

        async def late(producer: ProducerThread, name: str, *rest: Any, **more: Any) -> int:
            if not self.is_deaf or name != topic:
                return await send(producer, name, *rest, **more)
            if error is not None:
                raise error
            await send(producer, name, *rest, **more)
            await asyncio.sleep(60)
            raise AssertionError("it waits no longer than a client")

        monkeypatch.setattr(acceptance, "ACKNOWLEDGE_TIMEOUT_S", 0.05)
        monkeypatch.setattr(ProducerThread, "send", late)

    def hear(self) -> None:
        """And wait for it as long as ever."""
        self.is_deaf = False
        self._patch.setattr(acceptance, "ACKNOWLEDGE_TIMEOUT_S", ACKNOWLEDGE_TIMEOUT_S)


async def test_what_was_written_and_not_acknowledged_is_joined_once_it_is_known(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, keys = memory_log(settings), MemoryIdempotencyKeys()
    async with asking(settings, log, keys) as (stack, http):
        unheard = Unheard(settings, monkeypatch)
        refused = await http.post(PATH, json=HELLO)
        assert (error_of(refused)[:2], refused.headers["x-should-retry"]) == ((503, "unavailable"), "true")
        unheard.hear()
        request = await answer_next(stack)
        await until(lambda: stack.runtime.hub.has_ended(request.response_id), "it has ended")
        again = await http.post(PATH, json=HELLO)
        assert (again.status_code, again.json()["id"]) == (200, request.response_id)
        assert stack.pipeline.cancels() == [], "its client comes for it"
    assert requests_of(log, settings) == [request.response_id]


@pytest.mark.parametrize("reached", [True, False])
async def test_what_was_not_acknowledged_and_is_not_known_is_written_again_at_once_under_the_same_id(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, reached: bool
) -> None:
    """So admission decides it once, whether the first one reached the log or not."""
    log, keys = memory_log(settings), MemoryIdempotencyKeys()
    async with asking(settings, log, keys) as (stack, http):
        unheard = Unheard(settings, monkeypatch, None if reached else LogError("away", retriable=True))
        assert (await http.post(PATH, json=HELLO)).status_code == 503
        unheard.hear()
        posting = asyncio.ensure_future(http.post(PATH, json=HELLO))
        await until(lambda: len(stack.pipeline.requests()) == 1 + reached, "it is written again")
        request = await answer_next(stack)
        again = await posting
        assert (again.status_code, again.json()["id"]) == (200, request.response_id)
    assert set(requests_of(log, settings)) == {request.response_id}


async def test_what_the_log_does_not_take_leaves_the_key_free(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, keys = memory_log(settings), MemoryIdempotencyKeys()
    async with asking(settings, log, keys) as (stack, http):
        unheard = Unheard(settings, monkeypatch, ProducerQueueFull())
        assert (await http.post(PATH, json=HELLO)).status_code == 503
        assert len(keys) == 0
        unheard.hear()
        answering = asyncio.ensure_future(answer_next(stack))
        assert (await http.post(PATH, json={**HELLO, "n": 1})).status_code == 200
        await answering


async def test_a_stored_response_that_is_written_again_is_stored_once(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, keys, stored = memory_log(settings), MemoryIdempotencyKeys(), MemoryStoredResponses()
    async with asking(settings, log, keys, stored=stored) as (stack, http):
        unheard = Unheard(settings, monkeypatch)
        assert (await http.post("/v1/responses", json=RESPONSE)).status_code == 503
        assert len(stored.open_ids()) == 1, "what is on the log will be had by its key"
        unheard.hear()
        posting = asyncio.ensure_future(http.post("/v1/responses", json=RESPONSE))
        await until(lambda: len(stack.pipeline.requests()) == 2, "it is written again")
        request = await answer_next(stack)
        assert (await posting).json()["id"] == request.response_id
        await until(lambda: not stored.open_ids(), "its row is complete")
        assert len(stored) == 1


async def test_what_cannot_be_stored_is_not_on_the_log_either(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes back for it would be given what was to be stored, and is not."""
    monkeypatch.setattr(stored_turns, "AWAY_MS", 0)
    log, keys, stored = memory_log(settings), MemoryIdempotencyKeys(), MemoryStoredResponses()
    async with asking(settings, log, keys, stored=stored) as (stack, http):
        stored.is_away = True
        assert (await http.post("/v1/responses", json=RESPONSE)).status_code == 503
        assert requests_of(log, settings) == []
        stored.is_away = False
        answering = asyncio.ensure_future(answer_next(stack))
        assert (await http.post("/v1/responses", json=RESPONSE)).status_code == 200
        await answering
        assert len(stored) == 1


async def test_while_the_database_is_away_only_requests_with_a_key_are_refused(settings: Settings) -> None:
    log, keys = memory_log(settings), MemoryIdempotencyKeys()
    async with asking(settings, log, keys) as (stack, http), client(stack) as other:
        keys.is_away = True
        refused = await http.post(PATH, json=HELLO)
        assert (error_of(refused)[:2], refused.headers["x-should-retry"]) == ((503, "unavailable"), "true")
        assert "retry-after" in refused.headers
        assert requests_of(log, settings) == []
        answering = asyncio.ensure_future(answer_next(stack))
        assert (await other.post(PATH, json=HELLO)).status_code == 200
        await answering


class Forgetful(MemoryIdempotencyKeys):
    """Does what it is asked, and does not answer in time."""

    def __init__(self) -> None:
        super().__init__()
        self.is_forgetful = True

    async def claim(self, claim: Claim) -> Held:
        held = await super().claim(claim)
        self.is_away, self.is_forgetful = self.is_forgetful, False
        self._at_hand()
        return held


async def test_a_claim_that_nobody_heard_of_is_taken_over(settings: Settings) -> None:
    log, keys = memory_log(settings), Forgetful()
    async with asking(settings, log, keys) as (stack, http):
        assert (await http.post(PATH, json=HELLO)).status_code == 503
        keys.is_away = False
        later(keys, TRIED_WITHIN_MS)
        answering = asyncio.ensure_future(answer_next(stack))
        assert (await http.post(PATH, json=HELLO)).status_code == 200
        request = await answering
    assert requests_of(log, settings) == [request.response_id]


async def test_who_comes_back_after_a_restart_and_a_loss_of_redis_is_given_what_the_log_has(
    settings: Settings,
) -> None:
    log, keys = memory_log(settings), MemoryIdempotencyKeys()
    async with asking(settings, log, keys) as (stack, http):
        answering = asyncio.ensure_future(answer_next(stack))
        first = await http.post(PATH, json=HELLO)
        request = await answering
        await until(lambda: stack.runtime.hub.get(request.response_id) is None, "memory has left it to history")
    await forget_replay(stack, request.response_id)
    async with asking(settings, log, keys) as (stack, http):
        again = await http.post(PATH, json=HELLO)
        assert (again.status_code, again.json()) == (200, first.json())
    assert requests_of(log, settings) == [request.response_id]


async def until_answered(http: httpx.AsyncClient) -> httpx.Response:
    """As clients ask: again where they are told to."""
    while True:
        answer = await http.post(PATH, json=HELLO)
        if answer.status_code == 200 or answer.headers["x-should-retry"] != "true":
            return answer
        await asyncio.sleep(0.02)


async def test_two_gateways_that_are_asked_at_once_answer_once(settings: Settings) -> None:
    """Only one of them reads the partition that the answer comes in."""
    log, keys = memory_log(settings), MemoryIdempotencyKeys()
    async with AsyncExitStack() as both:
        chosen = [hasty(settings, gateway_id=f"gateway-{n}", admission_timeout_ms=200) for n in (1, 2)]
        gateways = [await both.enter_async_context(asking(each, log, keys)) for each in chosen]
        await until(lambda: all(len(stack.runtime.pump.owned) == 1 for stack, _ in gateways), "each has a partition")
        posts = [asyncio.ensure_future(until_answered(http)) for _, http in gateways]
        request = await answer_next(gateways[0][0])
        told = [answer.json() for answer in await asyncio.gather(*posts)]
    assert [each["id"] for each in told] == [request.response_id] * 2
    assert told[0] == told[1]
    assert requests_of(log, settings) == [request.response_id]
