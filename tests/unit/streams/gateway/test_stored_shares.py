"""What one tenant asks of the database keeps it from no other, however much that is."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import openai
import pytest

from streams.gateway.service import stored_turns
from streams.gateway.stored.memory import MemoryStoredResponses
from streams.gateway.stored.port import NewTurn
from streams.gateway.stored.replays import AT_ONCE_OF_TENANT
from streams.metadata.unavailable import TooManyWait
from streams.settings import Settings
from tests.unit.streams.gateway.gateway_stack import OTHER_KEY, memory_log, serving, until
from tests.unit.streams.gateway.http_clients import client, sdk
from tests.unit.streams.gateway.stored_stories import ask
from tests.unit.streams.gateway.test_responses import HELLO

FLOOD = 3 * AT_ONCE_OF_TENANT


class Gate(MemoryStoredResponses):
    """Answers nothing to acme before it may. `at_once`: the most that it was asked at the same time, by tenant."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()
        self.asked: Counter[str] = Counter()
        self.at_once: Counter[str] = Counter()

    async def _pass(self, tenant_id: str) -> None:
        self.asked[tenant_id] += 1
        self.at_once[tenant_id] = max(self.at_once[tenant_id], self.asked[tenant_id])
        if tenant_id == "acme":
            await self.may_answer.wait()
        self.asked[tenant_id] -= 1

    async def is_deleted(self, tenant_id: str, response_id: str) -> bool:
        await self._pass(tenant_id)
        return await super().is_deleted(tenant_id, response_id)

    async def delete(self, tenant_id: str, response_id: str, now_ms: int, known_until_ms: int) -> bool:
        await self._pass(tenant_id)
        return await super().delete(tenant_id, response_id, now_ms, known_until_ms)


@pytest.mark.parametrize(("method", "at_once"), [("GET", AT_ONCE_OF_TENANT), ("DELETE", 1)])
async def test_a_tenant_asks_for_a_few_at_once_and_another_beside_it(
    settings: Settings, method: str, at_once: int
) -> None:
    stored = Gate()
    async with (
        serving(settings, memory_log(settings), stored=stored) as stack,
        sdk(stack) as api,
        openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key=OTHER_KEY, max_retries=0) as theirs,
        client(stack) as http,
        client(stack, authorization=f"Bearer {OTHER_KEY}") as other,
    ):
        own, _ = await ask(stack, api, "France?")
        others, _ = await ask(stack, theirs, "France?")
        await until(lambda: not stored.open_ids(), "both are stored")
        flood = [asyncio.ensure_future(http.request(method, f"/v1/responses/{own.id}")) for _ in range(FLOOD)]
        await until(lambda: stored.asked["acme"] == at_once, "the first of them are asked for")
        for _ in range(20):
            assert (await other.get(f"/v1/responses/{others.id}")).status_code == 200
        assert (await other.request(method, f"/v1/responses/{others.id}")).status_code == 200
        stored.may_answer.set()
        told = Counter(answer.status_code for answer in await asyncio.gather(*flood))
        assert told == ({200: FLOOD} if method == "GET" else {200: 1, 404: FLOOD - 1})
    assert stored.at_once["acme"] == at_once


async def test_who_leaves_makes_no_room_before_the_database_has_answered(settings: Settings) -> None:
    """A flood of those who do not wait for it would lie in the database's queue all the same."""
    stored = Gate()
    async with serving(settings, memory_log(settings), stored=stored) as stack:
        turns = stack.runtime.gateway._stored
        deleting = [asyncio.ensure_future(turns.delete("acme", "resp_a")) for _ in range(3)]
        await until(lambda: stored.asked["acme"], "the first is asked for")
        for task in deleting:
            task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert [task.done() for task in deleting] == [False, True, True]
        stored.may_answer.set()
        await asyncio.wait(deleting)
    assert stored.at_once["acme"] == 1


class Full(MemoryStoredResponses):
    """Has no room for the first that is opened."""

    is_full = True

    async def open(self, turn: NewTurn) -> None:
        if self.is_full:
            self.is_full = False
            raise TooManyWait("1000 transactions wait already")
        await super().open(turn)


async def test_one_that_finds_no_room_at_the_database_keeps_nobody_from_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_turns, "AWAY_MS", 60_000)
    async with (
        serving(settings, memory_log(settings), stored=Full()) as stack,
        sdk(stack) as api,
        client(stack) as http,
    ):
        assert (await http.post("/v1/responses", json=HELLO)).status_code == 503
        await stack.pipeline.next_request()
        response, _ = await ask(stack, api, "France?")
        assert response.output_text == "Paris."


async def test_rows_of_what_was_refused_are_dropped_together(settings: Settings) -> None:
    class Counting(MemoryStoredResponses):
        drops = 0

        async def drop(self, response_ids: Sequence[str]) -> None:
            self.drops += 1
            await asyncio.sleep(0)
            await super().drop(response_ids)

    stored = Counting()
    async with serving(settings, memory_log(settings), stored=stored) as stack:
        names = [f"resp_{number}" for number in range(100)]
        for name in names:
            await stored.open(NewTurn(name, "acme", None, 0, 2**53, 2**53, b"[]"))
            stack.runtime.gateway._stored.drop_soon(name)
        await until(lambda: not len(stored), "no row is left")
    assert stored.drops < 10
