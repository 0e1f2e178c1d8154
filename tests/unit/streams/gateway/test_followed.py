"""What is followed is read on whatever the log fails with, and nothing is read that nobody follows."""

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest

from streams.gateway.fan_out import followed as followed_module
from streams.gateway.fan_out.followed import Followed
from streams.gateway.fan_out.following import Following
from streams.gateway.fan_out.spans import Span
from streams.log.memory import MemoryLog
from streams.log.port import Committed, LogError, LogRecord, TopicPartition
from tests.unit.streams.gateway.gateway_stack import PatientConsumer, release, until
from tests.unit.streams.gateway.hub_stories import ACME, R, hub, viewer_of

TOPIC = "responses"


class Reader(PatientConsumer):
    """Fails with what the test has put there, one poll or question each."""

    failures: list[LogError]

    def poll(self, max_records: int, timeout_s: float) -> list[LogRecord]:
        if self.failures and self.assignment():
            raise self.failures.pop(0)
        return super().poll(max_records, timeout_s)

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        if self.failures:
            raise self.failures.pop(0)
        return super().committed(partitions)


class World:
    def __init__(self) -> None:
        self.log = MemoryLog()
        self.log.create_topic(TOPIC, 2)
        self.hub = hub()
        self.following = Following(self.hub)
        self.reader_failures: list[LogError] = []
        self.asker_failures: list[LogError] = []
        self.opened = 0
        self.refusals: list[LogError] = []
        """Of clients that are opened."""
        self.followed = Followed(
            self.following, self.hub, TOPIC, open_reader=lambda: self._open(None, self.reader_failures),
            open_asker=lambda: self._open("gateways", self.asker_failures), wake_viewers=self.hub.wake_viewers,
            on_read=lambda: None,
        )  # fmt: skip

    def _open(self, group: str | None, failures: list[LogError]) -> Reader:
        self.opened += 1
        if self.refusals:
            raise self.refusals.pop()
        reader = Reader(self.log, group, f"client-{self.opened}", "earliest")
        reader.failures = failures
        return reader

    def write(self, first: int, token: str) -> None:
        self.log.append(TOPIC, release(R, ACME, first, [token]).encode(), partition=0)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(followed_module, "RETRY_S", 0.01)
    monkeypatch.setattr(followed_module, "ASK_EVERY_S", 0.01)
    world = World()
    working = [asyncio.ensure_future(work) for work in (world.followed.read(), world.followed.ask())]
    yield world
    for work in working:
        work.cancel()
    outcomes = await asyncio.gather(*working, return_exceptions=True)
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes), outcomes


async def heard(world: World, text: str) -> None:
    viewer = viewer_of(world.hub)
    heard = ""

    def has_all() -> bool:
        nonlocal heard
        while isinstance(event := viewer.take(), Span):
            heard += event.text
        return heard == text

    await until(has_all, f"{text} is heard")
    world.hub.detach(viewer, 0)


@pytest.mark.parametrize("retriable", [True, False])
async def test_whatever_the_log_fails_with_it_is_read_on(world: World, retriable: bool) -> None:
    world.reader_failures += [LogError("reading", retriable=retriable) for _ in range(3)]
    world.asker_failures += [LogError("asking", retriable=retriable) for _ in range(3)]
    world.write(1, "a")
    assert world.followed.want(0) is None
    await until(lambda: world.followed.number(0) is not None, "it is known where its owner stands")
    world.write(2, "b")
    await heard(world, "ab")
    assert not world.reader_failures
    assert not world.asker_failures
    assert (world.opened == 2) is retriable


async def test_a_client_that_cannot_be_opened_is_opened_a_little_later(world: World) -> None:
    world.refusals += [LogError("opening", retriable=False) for _ in range(3)]
    world.reader_failures.append(LogError("reading", retriable=False))
    world.write(1, "a")
    world.followed.want(0)
    await until(lambda: not world.reader_failures and not world.refusals, "all of it has failed")
    await heard(world, "a")


async def test_what_cannot_be_read_is_left_to_its_owner(world: World) -> None:
    world.write(1, "a")
    world.log.append(TOPIC, b"?", partition=0)
    world.write(2, "b")
    world.followed.want(0)
    await heard(world, "ab")
    assert world.following.positions() == {0: 3}


async def test_a_partition_is_read_from_the_groups_commit_and_only_as_long_as_it_is_followed(world: World) -> None:
    for number, token in enumerate("abc", 1):
        world.write(number, token)
    source = TopicPartition(TOPIC, 0)
    world.log.commit(world.log.group("gateways"), {source: Committed(2)})
    world.followed.want(0)
    await until(lambda: world.hub.released_tokens == 1, "what is behind the commit is read")
    world.followed.want(1)
    await until(lambda: world.followed.number(1) is not None, "another one is read beside it")
    world.write(4, "d")
    await until(lambda: world.hub.released_tokens == 2, "and the first one goes on")
    world.following.comes(0, Committed(2), 0)
    world.followed.look()
    world.write(5, "e")
    await asyncio.sleep(0.1)
    assert (world.hub.released_tokens, world.hub.duplicate_tokens) == (2, 0), "this gateway reads it in another way"
