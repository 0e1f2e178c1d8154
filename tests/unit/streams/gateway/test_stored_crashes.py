"""A gateway that dies after each step of a stored response, or whose database is away: what was told is not lost."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from openai.types.responses import Response

from schemas.request import Request
from streams import redis_keys
from streams.clocks import now_ms
from streams.gateway.history.store import connect_history
from streams.gateway.history.unavailable import HistoryUnavailable
from streams.gateway.service import acceptance, resumption, stored_turns
from streams.gateway.service.ports import ACKNOWLEDGE_TIMEOUT_S
from streams.gateway.stored import keeper as keeper_module
from streams.gateway.stored.memory import MemoryStoredResponses
from streams.gateway.stored.port import Answer, NewTurn
from streams.ids import parse_response_id
from streams.log.memory import MemoryLog
from streams.log.port import LogError, ProducerQueueFull, TopicPartition
from streams.metadata.unavailable import MetadataUnavailable
from streams.settings import Settings
from streams.topics import HOUR_MS, LONGEST_RESPONSE_MS
from tests.unit.streams.gateway.gateway_stack import Stack, gateway_settings, memory_log, serving, until
from tests.unit.streams.gateway.http_clients import client, sdk
from tests.unit.streams.gateway.stored_stories import (
    DAY_MS,
    ask,
    completed,
    error_of,
    forget_replay,
    never,
    previous_not_found,
    said,
)
from tests.unit.streams.gateway.test_responses import HELLO

LATER_MS = 20 * 60_000
"""When open rows are looked for: behind the deadline of any response."""


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "RETRY_S", 0.01)
    monkeypatch.setattr(keeper_module, "CLOSE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(stored_turns, "AWAY_MS", 0)


class Deaf(MemoryStoredResponses):
    """Takes no answers while it `is_deaf`: as if each gateway died before it had written one."""

    def __init__(self) -> None:
        super().__init__()
        self.is_deaf = True
        self.completions = 0

    async def complete(self, answers: Sequence[Answer]) -> None:
        if self.is_deaf:
            raise MetadataUnavailable("deaf")
        self.completions += len(answers)
        await super().complete(answers)


def all_committed(log: MemoryLog, settings: Settings, response_id: str) -> bool:
    source = TopicPartition(settings.topics.responses.name, parse_response_id(response_id).partition)
    return log.committed("gateways", source).offset == len(log.records(source.topic, source.partition))


async def ask_in_background(stack: Stack) -> tuple[Response, Request]:
    """It was told an id, and has said one word."""
    async with sdk(stack) as api:
        asking = asyncio.ensure_future(api.responses.create(model="small", input="France?", background=True))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["Par"])
        return await asking, request


async def goes_on(stack: Stack, response_id: str) -> None:
    stack.pipeline.pass_over()
    async with sdk(stack) as api:
        _, request = await ask(stack, api, "Italy?", previous_response_id=response_id)
    assert said(request) == [("user", "France?"), ("assistant", "Paris"), ("user", "Italy?")]


async def test_killed_before_its_end_the_next_owner_completes_it(settings: Settings) -> None:
    log, stored = memory_log(settings), MemoryStoredResponses()
    async with serving(settings, log, stored=stored) as stack:
        response, request = await ask_in_background(stack)
        await until(lambda: all_committed(log, settings, response.id), "its beginning is not read again")
    stack.pipeline.release(request, 2, ["is"])
    stack.pipeline.end(request, 3)
    assert stored.open_ids() == [response.id]
    async with serving(settings, log, stored=stored) as stack:
        await until(lambda: stack.runtime.hub.has_ended(response.id), "its end is read")
        await goes_on(stack, response.id)
        await stack.runtime._keeper.look(request.deadline_ms + LATER_MS)
        await completed(stored)


@pytest.mark.parametrize("is_committed", [False, True], ids=["before the commit", "after the commit"])
async def test_killed_after_its_end_was_read_it_is_completed_all_the_same(
    settings: Settings, is_committed: bool
) -> None:
    log, stored = memory_log(settings), Deaf()
    async with serving(settings, log, stored=stored) as stack:
        if not is_committed:
            stack.runtime.pump._commit = _no_commit
        response, request = await ask_in_background(stack)
        stack.pipeline.release(request, 2, ["is"])
        stack.pipeline.end(request, 3)
        await until(lambda: stack.runtime.hub.has_ended(response.id), "its end is read")
        if is_committed:
            await until(lambda: all_committed(log, settings, response.id), "nobody reads it again")
    assert stored.open_ids() == [response.id]
    stored.is_deaf = False
    async with serving(settings, log, stored=stored) as stack:
        await goes_on(stack, response.id)
        if not is_committed:
            await completed(stored)
        else:
            assert response.id in stored.open_ids()
            await stack.runtime._keeper.look(request.deadline_ms + LATER_MS)
            assert response.id not in stored.open_ids()
    await forget_replay(stack, response.id)
    async with serving(settings, memory_log(settings), stored=stored) as stack:
        await goes_on(stack, response.id)


async def test_an_end_that_redis_has_lost_is_found_in_the_log(settings: Settings) -> None:
    log, stored = memory_log(settings), Deaf()
    async with serving(settings, log, stored=stored) as stack:
        response, request = await ask_in_background(stack)
        await until(lambda: all_committed(log, settings, response.id), "its beginning stands in history")
        stack.pipeline.release(request, 2, ["is"])
        stack.pipeline.end(request, 3)
        await until(lambda: stack.runtime.hub.get(response.id) is None, "and so does its end")
    async with connect_history(settings.redis) as redis:
        assert await redis.rpop(redis_keys.history(settings.region, "acme", response.id))
    stored.is_deaf = False
    async with serving(settings, log, stored=stored) as stack:
        await stack.runtime._keeper.look(request.deadline_ms + LATER_MS)
        assert stored.open_ids() == []
        await goes_on(stack, response.id)


async def _no_commit(_: object) -> None:
    """As if it died before."""


async def test_killed_after_it_was_completed_it_is_completed_no_second_time(settings: Settings) -> None:
    log, stored = memory_log(settings), Deaf()
    stored.is_deaf = False
    async with serving(settings, log, stored=stored) as stack:
        stack.runtime.pump._commit = _no_commit
        response, request = await ask_in_background(stack)
        stack.pipeline.release(request, 2, ["is"])
        stack.pipeline.end(request, 3)
        await completed(stored)
        first = dict(stored._rows)
    async with serving(settings, log, stored=stored) as stack:
        await until(lambda: stored.completions == 2, "it is read again, and written again")
        assert stored._rows == first
        await goes_on(stack, response.id)


async def test_killed_between_the_row_and_the_log_nobody_has_the_id(settings: Settings) -> None:
    """The row is dropped when no log could tell of the request any more, and not before."""
    stored = MemoryStoredResponses()
    orphan = settings.response_ids.mint(0)
    minted_at_ms = parse_response_id(orphan).minted_at_ms or 0
    await stored.open(NewTurn(orphan, "acme", None, minted_at_ms, minted_at_ms + 30 * DAY_MS, minted_at_ms, b"[]"))
    async with serving(settings, memory_log(settings), stored=stored) as stack:
        await stack.runtime._keeper.look(minted_at_ms + LATER_MS)
        assert stored.open_ids() == [orphan], "post-safety may be down, and tell of it later"
        await stack.runtime._keeper.look(minted_at_ms + 2 * DAY_MS)
        assert len(stored) == 0


async def test_what_history_is_never_read_for_in_time_is_dropped_all_the_same(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that is too long to be read to its end has forgotten that time too."""

    async def too_late(*_: object, **_more: object) -> None:
        raise HistoryUnavailable("not read to the end in time")

    stored = MemoryStoredResponses()
    orphan = settings.response_ids.mint(0)
    minted_at_ms = parse_response_id(orphan).minted_at_ms or 0
    await stored.open(NewTurn(orphan, "acme", None, minted_at_ms, minted_at_ms + 30 * DAY_MS, minted_at_ms, b"[]"))
    async with serving(settings, memory_log(settings), stored=stored) as stack:
        monkeypatch.setattr(stack.runtime._keeper._history, "read", too_late)
        await stack.runtime._keeper.look(minted_at_ms + LATER_MS)
        assert stored.open_ids() == [orphan]
        await stack.runtime._keeper.look(minted_at_ms + 2 * DAY_MS)
        assert len(stored) == 0


@pytest.mark.parametrize("refuses", ["log", "database"])
async def test_what_only_one_of_both_takes_is_not_accepted(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, refuses: str
) -> None:
    stored = MemoryStoredResponses()
    async with serving(settings, memory_log(settings), stored=stored) as stack, client(stack) as http:
        if refuses == "log":
            send = stack.runtime._producer.send

            async def refuse(topic: str, value: bytes | None, **more: Any) -> int:
                if topic != settings.topics.requests.name:
                    return await send(topic, value, **more)
                await until(lambda: len(stored), "the row is there")
                raise LogError("away", retriable=True)

            monkeypatch.setattr(stack.runtime._producer, "send", refuse)
        else:
            stored.is_away = True
        refused = await http.post("/v1/responses", json=HELLO)
        assert (refused.status_code, refused.headers["x-should-retry"]) == (503, "true")
        assert refused.headers["x-request-id"].startswith("req_")
        stored.is_away = False
        await until(lambda: not len(stored), "no row is left of it")
        if refuses == "database":
            await until(stack.pipeline.cancels, "what reached the log is cancelled")
            assert stack.pipeline.cancels()[0].response_id == stack.pipeline.requests()[0].response_id


class Broken(MemoryStoredResponses):
    async def open(self, turn: NewTurn) -> None:
        raise ValueError("whatever it is")


async def test_of_what_breaks_while_it_is_accepted_nothing_runs_on(settings: Settings) -> None:
    """Its client was told no id, and would pay for what it cannot have."""
    async with serving(settings, memory_log(settings), stored=Broken()) as stack, client(stack) as http:
        refused = await http.post("/v1/responses", json={**HELLO, "background": True})
        assert refused.status_code == 500
        await until(stack.pipeline.cancels, "what reached the log is cancelled")
        [request], [cancel] = stack.pipeline.requests(), stack.pipeline.cancels()
        assert cancel.response_id == request.response_id
        stream = stack.runtime.hub.get(request.response_id)
        assert stream is None or not stream.viewers
        assert (await http.get("/v1/models")).status_code == 200


class Late(MemoryStoredResponses):
    """Opens nothing before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_open = asyncio.Event()
        self.has_opened = asyncio.Event()

    async def open(self, turn: NewTurn) -> None:
        await self.may_open.wait()
        await super().open(turn)
        self.has_opened.set()


async def test_a_row_that_is_written_after_its_request_was_refused_is_dropped(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left, it would be looked for in the log for two days."""

    async def refuse(*_: object, **_more: object) -> int:
        raise ProducerQueueFull

    stored = Late()
    async with serving(settings, memory_log(settings), stored=stored) as stack, client(stack) as http:
        monkeypatch.setattr(stack.runtime._producer, "send", refuse)
        assert (await http.post("/v1/responses", json=HELLO)).status_code == 503
        stored.may_open.set()
        await stored.has_opened.wait()
        await until(lambda: not len(stored), "no row is left of it")


async def test_a_row_that_nobody_waits_for_any_more_is_not_written(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written for those who have left, the rows of those who wait would come too late as well."""
    monkeypatch.setattr(acceptance, "ACKNOWLEDGE_TIMEOUT_S", 0.05)
    stored = Late()
    async with serving(settings, memory_log(settings), stored=stored) as stack, client(stack) as http:
        assert (await http.post("/v1/responses", json=HELLO)).status_code == 503
        stored.may_open.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not stored.has_opened.is_set()


async def test_a_row_that_is_written_after_the_end_is_completed(settings: Settings) -> None:
    """The database may take longer than the whole answer."""
    stored = Late()
    async with serving(settings, memory_log(settings), stored=stored) as stack, sdk(stack) as api:
        asking = asyncio.ensure_future(ask(stack, api, "France?", ["Par", "is"]))
        await until(lambda: stack.pipeline.requests(), "it is asked")
        response_id = stack.pipeline.requests()[0].response_id
        await until(lambda: stack.runtime.hub.has_ended(response_id), "it has ended")
        stored.may_open.set()
        response, _ = await asking
        await completed(stored)
        await goes_on(stack, response.id)


async def test_while_the_database_is_away_only_what_needs_it_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = MemoryStoredResponses()
    async with (
        serving(settings, memory_log(settings), stored=stored) as stack,
        sdk(stack) as api,
        client(stack) as http,
    ):
        response, request = await ask_in_background(stack)
        stored.is_away = True
        stack.pipeline.release(request, 2, ["is"])
        stack.pipeline.end(request, 3)
        await until(lambda: stack.runtime.hub.has_ended(response.id), "what was accepted ends")
        await until(
            lambda: all_committed(stack.log, settings, response.id), "and no commit of the log waits for the database"
        )
        monkeypatch.setattr(stored_turns, "AWAY_MS", 60_000)
        for body in (HELLO, {**HELLO, "store": True}, {**HELLO, "previous_response_id": response.id}):
            refused = await http.post("/v1/responses", json=body)
            assert (error_of(refused)[:2], refused.headers["x-should-retry"]) == ((503, "unavailable"), "true")
        assert len(stack.pipeline.requests()) == 2, "after the first failure the log is spared what would be refused"
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/input_items")):
            assert (await http.request(method, f"/v1/responses/{response.id}{path}")).status_code == 503
        stack.pipeline.pass_over()
        passing, _ = await ask(stack, api, "Hi", store=False)
        assert (await api.responses.retrieve(passing.id)).output_text == "Paris."
        stored.is_away = False
        await completed(stored)
        assert (await api.responses.retrieve(response.id)).output_text == "Paris"


async def test_answers_that_wait_for_the_database_are_bounded(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "MAX_ENDED", 1)
    log, stored = memory_log(settings), Deaf()
    async with serving(settings, log, stored=stored) as stack, sdk(stack) as api:
        ids = [(await ask(stack, api, "France?", ["Paris"]))[0].id for _ in range(3)]
        assert len(stack.runtime._keeper._ended) == 1
        stored.is_deaf = False
        await until(lambda: len(stored.open_ids()) == 2, "the one that is remembered is written")
        requests = {request.response_id: request for request in stack.pipeline.requests()}
        await stack.runtime._keeper.look(max(each.deadline_ms for each in requests.values()) + LATER_MS)
        assert stored.open_ids() == []
        await goes_on(stack, ids[-1])


def test_a_client_waits_for_the_database_no_longer_than_for_the_log(settings: Settings) -> None:
    waits_ms = settings.metadata.busy_timeout_ms + settings.metadata.statement_timeout_ms
    assert waits_ms < ACKNOWLEDGE_TIMEOUT_S * 1_000


async def test_of_what_may_run_for_a_day_the_answer_is_looked_for_while_the_log_has_it(redis_url: str) -> None:
    settings = gateway_settings(redis_url, "storedlong", request_timeout_ms=LONGEST_RESPONSE_MS)
    log, stored = memory_log(settings), Deaf()
    async with serving(settings, log, stored=stored) as stack:
        response, request = await ask_in_background(stack)
        stack.pipeline.end(request, 2)
        await until(lambda: all_committed(log, settings, response.id), "nobody reads it again")
    stored.is_deaf = False
    async with serving(settings, log, stored=stored) as stack:
        await stack.runtime._keeper.look(request.accepted_at_ms + HOUR_MS)
        assert stored.open_ids() == []


async def test_of_what_replay_has_lost_the_prompt_is_deleted_once_its_deadline_is_past(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody will ever write how it ended, and two days are long for a prompt that is to go."""
    monkeypatch.setattr(stored_turns, "LOOK_AFTER_DEADLINE_MS", 0)
    monkeypatch.setattr(resumption, "is_young", never)
    stored = MemoryStoredResponses()
    lost = settings.response_ids.mint(0)
    minted_at_ms = parse_response_id(lost).minted_at_ms or 0
    await stored.open(NewTurn(lost, "acme", None, minted_at_ms, minted_at_ms + 30 * DAY_MS, 2**53, b"[]"))
    path = f"/v1/responses/{lost}"
    async with serving(settings, memory_log(settings), stored=stored) as stack, client(stack) as http:
        assert (await http.delete(path)).status_code == 404
        assert stored._rows[lost].input, "it has ten minutes, and may run"
    brief = settings.model_copy(update={"gateway": settings.gateway.model_copy(update={"request_timeout_ms": 1_000})})
    async with serving(brief, memory_log(brief), stored=stored) as stack, client(stack) as http:
        await until(lambda: now_ms() >= minted_at_ms + 1_000, "its second is past")
        assert (await http.delete(path)).status_code == 200
        assert (await http.delete(path)).status_code == 404
    assert stored._rows[lost].input == b""


async def test_who_goes_on_is_told_when_the_store_goes_away_meanwhile(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it still runs would be made up."""
    stored = Deaf()
    async with serving(settings, memory_log(settings), stored=stored) as stack, client(stack) as http:
        response, request = await ask_in_background(stack)
        stack.pipeline.end(request, 2)
        await until(lambda: stack.runtime.hub.has_ended(response.id), "it has ended, and its row is open")

        async def away(*_: object) -> bool:
            raise MetadataUnavailable("away")

        monkeypatch.setattr(stored, "is_deleted", away)
        refused = await http.post("/v1/responses", json={**HELLO, "previous_response_id": response.id})
        assert (error_of(refused)[:2], refused.headers["x-should-retry"]) == ((503, "unavailable"), "true")


async def test_what_is_lost_for_good_is_not_found_by_who_goes_on_with_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis has evicted it, and the log has begun to forget it: it has its end alone."""
    monkeypatch.setattr(resumption, "is_young", never)
    log, stored = memory_log(settings), Deaf()
    async with serving(settings, log, stored=stored) as stack:
        response, request = await ask_in_background(stack)
        stack.pipeline.end(request, 2)
        await until(lambda: all_committed(log, settings, response.id), "nobody reads it again")
    await forget_replay(stack, response.id)
    source = TopicPartition(settings.topics.responses.name, parse_response_id(response.id).partition)
    log.delete_records(source, len(log.records(source.topic, source.partition)) - 1)
    async with serving(settings, log, stored=stored) as stack, client(stack) as http:
        refused = await http.post("/v1/responses", json={**HELLO, "previous_response_id": response.id})
        assert error_of(refused) == previous_not_found(response.id)


async def test_what_may_yet_be_ended_is_not_lost(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Post-safety is down, and writes the end once it is back, however late."""
    monkeypatch.setattr(resumption, "OVERDUE_MS", -(2**53))
    other = settings.model_copy(update={"gateway": settings.gateway.model_copy(update={"admission_timeout_ms": 50})})
    log, stored = memory_log(settings), Deaf()
    async with serving(other, log, stored=stored) as stack:
        response, request = await ask_in_background(stack)
        await until(lambda: all_committed(log, settings, response.id), "nobody reads it again")
    async with serving(other, log, stored=stored) as stack, client(stack) as http:
        refused = await http.post("/v1/responses", json={**HELLO, "previous_response_id": response.id})
        assert error_of(refused)[:2] == (409, "previous_response_in_progress")
        stack.pipeline.end(request, 2)
        await until(lambda: stack.runtime.hub.has_ended(response.id), "it is ended")
