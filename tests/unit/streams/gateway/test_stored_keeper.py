"""Who writes and forgets what is stored: one row that cannot be written holds up no other, no wrong clock forgets."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import cast
from unittest import mock

import pytest
from prometheus_client import CollectorRegistry

from schemas.base import Scope
from streams.gateway.fan_out.stream import Stream
from streams.gateway.history.replay import Replay
from streams.gateway.history.store import History
from streams.gateway.history.unavailable import HistoryUnavailable
from streams.gateway.metrics import GatewayMetrics
from streams.gateway.stored import keeper as keeper_module
from streams.gateway.stored.keeper import MAX_FAILURES, READ_BACK_AT_ONCE, Keeper
from streams.gateway.stored.memory import MemoryStoredResponses
from streams.gateway.stored.port import Answer, Bounds, NewTurn
from streams.gateway.stored.replays import StoredReplays
from streams.metadata.unavailable import MetadataUnavailable
from streams.settings import MetadataSettings
from tests.unit.streams.gateway.gateway_stack import started, terminal, until
from tests.unit.streams.gateway.replays import span
from tests.unit.streams.gateway.stored_stories import DAY_MS

ACME = Scope(tenant_id="acme")
STORED = '{"store":true}'
NOW_MS = 1_800_000_000_000


class Locked(MemoryStoredResponses):
    """Somebody who is frozen holds a row of these: no batch with it is written."""

    def __init__(self, *locked: str) -> None:
        super().__init__()
        self.locked = set(locked)
        self.batches: list[list[str]] = []

    async def complete(self, answers: Sequence[Answer]) -> None:
        names = [answer.response_id for answer in answers]
        self.batches.append(names)
        if self.locked & set(names):
            raise MetadataUnavailable("locked")
        await super().complete(answers)

    async def now_ms(self) -> int:
        return NOW_MS


class Told:
    """History that has the whole of every response."""

    async def read(self, _tenant_id: str, response_id: str, _after: int, **_more: object) -> Replay:
        replay = Replay(whole=True)
        replay.add_started(started(response_id, ACME, echo=STORED))
        replay.add_terminal(terminal(response_id, ACME, 1))
        return replay


def keeper_of(stored: MemoryStoredResponses, history: object = None, **settings: int) -> Keeper:
    metrics = GatewayMetrics(CollectorRegistry())
    return Keeper(StoredReplays(stored), cast(History, history), MetadataSettings(**settings), metrics)


async def opened(stored: MemoryStoredResponses, *names: str, created_at_ms: int = 0) -> None:
    for name in names:
        await stored.open(NewTurn(name, "acme", None, created_at_ms, created_at_ms + 30 * DAY_MS, created_at_ms, b"x"))


def ended(keeper: Keeper, name: str) -> None:
    stream = Stream(name, 0, ACME, 1, 0)
    stream.started, stream.terminal = started(name, ACME, echo=STORED), terminal(name, ACME, 1)
    keeper.ended(stream)


async def test_an_answer_that_cannot_be_written_holds_up_none_of_those_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keeper_module, "RETRY_S", 0.001)
    stored = Locked("b")
    keeper = keeper_of(stored)
    await opened(stored, *"abcde")
    for name in "abcd":
        ended(keeper, name)
    writing = asyncio.ensure_future(keeper.write())
    try:
        await until(lambda: stored.open_ids() == ["b", "e"], "all others are written")
        assert stored.batches[:5] == [[*"abcd"], ["a"], ["b"], ["c"], ["d"]]
        ended(keeper, "e")
        await until(lambda: stored.open_ids() == ["b"], "so is what comes later")
        await until(lambda: not keeper._ended, "this one is left to the look")
        assert (stored.open_ids(), keeper._held_bytes) == (["b"], 0)
        assert 2 <= stored.batches.count(["b"]) <= MAX_FAILURES, "each try keeps others from the writer"
        stored.batches.clear()
        await opened(stored, "f", "g")
        for name in "fg":
            ended(keeper, name)
        await until(lambda: stored.open_ids() == ["b"], "they are written")
        assert stored.batches == [["f", "g"]], "together again"
    finally:
        writing.cancel()
        await asyncio.wait((writing,))


async def test_while_nothing_is_written_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database is away, and whoever fails is as good as the others."""
    monkeypatch.setattr(keeper_module, "RETRY_S", 0.001)
    stored = Locked("a", "b")
    keeper = keeper_of(stored)
    await opened(stored, "a", "b")
    for name in "ab":
        ended(keeper, name)
    writing = asyncio.ensure_future(keeper.write())
    try:
        await until(lambda: len(stored.batches) > 6 * MAX_FAILURES, "they are tried again and again")
        assert len(keeper._ended) == 2
        stored.locked.clear()
        await until(lambda: not stored.open_ids(), "and written as soon as they can be")
    finally:
        writing.cancel()
        await asyncio.wait((writing,))


class Slow(Told):
    """History that tells the first token of a response when it may."""

    def __init__(self) -> None:
        self.may_tell = asyncio.Event()
        self.asked: list[str] = []

    async def read(self, _tenant_id: str, response_id: str, _after: int, **_more: object) -> Replay:
        self.asked.append(response_id)
        await self.may_tell.wait()
        replay = Replay()
        replay.add_started(started(response_id, ACME, echo=STORED))
        replay.add_span(span(1, "a"))
        return replay


def ended_torn(keeper: Keeper, name: str) -> None:
    """Memory holds its second token and its end."""
    stream = Stream(name, 0, ACME, 1, 0)
    stream.started, stream.terminal = started(name, ACME, echo=STORED), terminal(name, ACME, 3)
    stream.spans.append(span(2, "b"))
    keeper.ended(stream)


async def test_whose_beginning_is_read_back_holds_up_none_of_those_behind_it() -> None:
    stored, history = Locked(), Slow()
    keeper = keeper_of(stored, history)
    torn = [f"torn-{number}" for number in range(2 * READ_BACK_AT_ONCE)]
    await opened(stored, *torn, "a", "b", created_at_ms=NOW_MS)
    for name in torn:
        ended_torn(keeper, name)
    for name in "ab":
        ended(keeper, name)
    tasks = [asyncio.ensure_future(keeper.write()), asyncio.ensure_future(keeper.read_back())]
    try:
        await until(lambda: stored.open_ids() == torn, "what memory holds is written")
        assert history.asked == torn[:READ_BACK_AT_ONCE]
        history.may_tell.set()
        await until(lambda: not stored.open_ids(), "so are the others, once they are whole")
        assert (keeper._held_bytes, keeper._metrics.stored_left._value.get()) == (0, 0)
        replay = await keeper.kept.read("acme", torn[0], 0)
        assert replay is not None
        assert ("".join(each.text for each in replay.spans), replay.gap) == ("ab", False)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@pytest.mark.parametrize("fails", ["late", "gone", "broken"])
async def test_whose_beginning_cannot_be_had_is_left_to_the_look(monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    monkeypatch.setattr(keeper_module, "READ_BACK_TIMEOUT_S", 0.01)
    history = Slow()
    if fails != "late":
        told: object = ValueError("a prompt") if fails == "broken" else HistoryUnavailable("away")
        monkeypatch.setattr(history, "read", mock.AsyncMock(side_effect=told))
    stored = Locked()
    keeper = keeper_of(stored, history)
    await opened(stored, "torn")
    ended_torn(keeper, "torn")
    reading = asyncio.ensure_future(keeper.read_back())
    try:
        await until(lambda: keeper._metrics.stored_left._value.get() == 1, "it is left")
        assert (stored.open_ids(), len(keeper._torn), keeper._held_bytes) == (["torn"], 0, 0)
    finally:
        reading.cancel()
        await asyncio.wait((reading,))


class Broken(Locked):
    """What it fails with is nobody's to expect."""

    tends = 0

    async def complete(self, answers: Sequence[Answer]) -> None:
        try:
            await super().complete(answers)
        except MetadataUnavailable:
            raise ValueError("a prompt") from None

    async def now_ms(self) -> int:
        self.tends += 1
        if self.tends == 1:
            raise ValueError("a prompt")
        return NOW_MS


async def test_what_a_store_fails_with_ends_no_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RETRY_S", "TEND_EVERY_S"):
        monkeypatch.setattr(keeper_module, name, 0.001)
    stored = Broken("a", "due")
    keeper = keeper_of(stored, Told())
    await opened(stored, "due", "found", created_at_ms=NOW_MS - DAY_MS)
    await opened(stored, "a", "b", created_at_ms=NOW_MS)
    for name in "ab":
        ended(keeper, name)
    tasks = [asyncio.ensure_future(keeper.write()), asyncio.ensure_future(keeper.tend())]
    try:
        await until(lambda: set(stored.open_ids()) <= {"a", "due"}, "all others are written")
        assert not any(task.done() for task in tasks)
        assert keeper._metrics.stored_failures._value.get() >= 3
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    await keeper.close()


async def test_an_open_row_that_cannot_be_completed_holds_up_none_of_those_behind_it() -> None:
    stored = Locked("a")
    await opened(stored, "a", "b", "c", created_at_ms=NOW_MS)
    await keeper_of(stored, Told()).look(NOW_MS)
    assert stored.open_ids() == ["a"]


@pytest.mark.parametrize(("others", "left"), [([], {"old", "young"}), (["c"], {"young", "c"})], ids=["away", "well"])
async def test_what_can_never_be_completed_is_dropped_once_the_log_has_forgotten_it(
    others: list[str], left: set[str]
) -> None:
    """Else it is tried as long as the row is kept; only where others are written, or the database may just be away."""
    stored = Locked("old", "young")
    await opened(stored, "old", created_at_ms=NOW_MS - 2 * DAY_MS)
    await opened(stored, "young", *others, created_at_ms=NOW_MS)
    await keeper_of(stored, Told()).look(NOW_MS)
    assert set(stored._rows) == left


async def test_a_gateway_whose_clock_is_ahead_forgets_nothing_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what it thinks expired, nor the row of a response that runs."""
    monkeypatch.setattr(keeper_module, "TEND_EVERY_S", 0.001)
    monkeypatch.setattr(keeper_module, "now_ms", lambda: NOW_MS + 60 * DAY_MS, raising=False)
    stored = Locked()
    await opened(stored, "kept", "runs", created_at_ms=NOW_MS)
    await opened(stored, "expired", created_at_ms=NOW_MS - 30 * DAY_MS)
    await opened(stored, "lost", created_at_ms=NOW_MS - 2 * DAY_MS)
    await stored.complete([Answer(name, "acme", b"told", 4) for name in ("kept", "expired")])
    nothing = mock.Mock(read=mock.AsyncMock(return_value=None))
    tending = asyncio.ensure_future(keeper_of(stored, nothing).tend())
    await until(lambda: len(stored) <= 2, "what is due is forgotten")
    tending.cancel()
    await asyncio.wait((tending,))
    assert set(stored._rows) == {"kept", "runs"}


class Uncounted(MemoryStoredResponses):
    """What the first tenant has takes too long to count."""

    async def shed(self, tenant_id: str, kept: Bounds, at_once: Bounds) -> int:
        if tenant_id == "acme":
            raise MetadataUnavailable("too slow")
        return await super().shed(tenant_id, kept, at_once)


async def test_a_tenant_that_cannot_be_counted_holds_up_no_other() -> None:
    stored = Uncounted()
    keeper = keeper_of(stored, tenant_responses=1)
    for tenant_id in ("acme", "beta"):
        for number in range(2):
            await stored.open(NewTurn(f"{tenant_id}-{number}", tenant_id, None, number, 2**53, 2**53, b"x"))
        keeper.accepted(Stream(tenant_id, 0, Scope(tenant_id=tenant_id), 1, 0))
    for _ in range(2):
        with suppress(MetadataUnavailable):
            await keeper.forget(0)
    assert set(stored._rows) == {"acme-0", "acme-1", "beta-1"}
