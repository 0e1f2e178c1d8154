"""Results are read once for all batches that a gateway holds: each is told all of its own, whenever it comes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from streams.clocks import monotonic_ms
from streams.gateway.batches import results as results_module
from streams.gateway.batches.results import ROUND_LOOK_EVERY_MS, Results
from streams.gateway.batches.told import Place, packed
from streams.log.memory import MemoryLog
from streams.log.port import LogError, LogRecord, TopicPartition
from tests.unit.streams.gateway.gateway_stack import PatientConsumer, until

TOPIC = "batch.results"


class Follower:
    def __init__(self, batch_id: str, positions: tuple[int, ...]) -> None:
        self.batch_id = batch_id
        self.positions = positions
        self.told: list[int] = []
        self.has_room = asyncio.Event()
        self.has_room.set()

    async def room(self) -> None:
        await self.has_room.wait()

    def take(self, place: Place, value: bytes) -> None:
        assert place.batch_id == self.batch_id
        self.told.append(place.line)


def a_log() -> MemoryLog:
    log = MemoryLog()
    log.create_topic(TOPIC, 2)
    return log


def write(log: MemoryLog, batch_id: str, *lines: int) -> None:
    for line in lines:
        log.append(TOPIC, b"{}", key=packed(Place(batch_id, line, "a")), partition=line % 2)


@asynccontextmanager
async def reading(
    log: MemoryLog, consumer: Any = None, clock_ms: Callable[[], int] = monotonic_ms
) -> AsyncIterator[Results]:
    def opened() -> PatientConsumer:
        made: PatientConsumer = (consumer or PatientConsumer)(log, None, "reader", "earliest")
        return made

    results = Results(opened, TOPIC, clock_ms)
    task = asyncio.ensure_future(results.read())
    try:
        yield results
        assert not task.done()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await results.close()


async def test_each_batch_is_told_its_own_results_from_its_positions_on() -> None:
    log = a_log()
    write(log, "one", 0, 1, 2)
    async with reading(log) as results:
        assert await results.ends() == [2, 1]
        one = Follower("one", (1, 0))
        results.follow(one)
        write(log, "two", 3, 4)
        write(log, "one", 5, 6)
        await until(lambda: len(one.told) == 4, "it is told what stands behind its positions")
        assert sorted(one.told) == [1, 2, 5, 6]
        assert results.reached(one) == (4, 3)


async def test_who_comes_later_is_told_what_was_read_before_it_came() -> None:
    log = a_log()
    async with reading(log) as results:
        one, two = Follower("one", (0, 0)), Follower("two", (0, 0))
        results.follow(one)
        write(log, "two", 0, 1)
        write(log, "one", 2, 3)
        await until(lambda: len(one.told) == 2, "the first is told")
        results.follow(two)
        assert results.reached(two) == (0, 0), "nothing is told as read that it was not told"
        await until(lambda: len(two.told) == 2, "the second is told")
        write(log, "one", 4)
        await until(lambda: 4 in one.told, "and it goes on")
        results.leave(one)
        results.leave(two)
        write(log, "one", 5)
        again = Follower("one", (2, 2))
        results.follow(again)
        await until(lambda: again.told, "who comes back is told from its positions on")
        await until(lambda: sorted(again.told) == [4, 5], "all of it")


async def test_many_that_come_one_by_one_from_far_behind_keep_nobody_from_what_is_new() -> None:
    log, polls = a_log(), 0
    write(log, "late-0", 0)
    write(log, "other", *range(600))
    write(log, "one", 0)

    class Counting(PatientConsumer):
        def poll(self, max_records: int, timeout_s: float) -> list[LogRecord]:
            nonlocal polls
            records = super().poll(max_records, timeout_s)
            polls += bool(records)
            return records

    async with reading(log, Counting) as results:
        one = Follower("one", (0, 0))
        results.follow(one)
        late = [Follower(f"late-{number}", (0, 0)) for number in range(100)]
        for comer in late:
            seen = polls
            await until(lambda: one.told or polls > seen, "reading goes on")  # noqa: B023 - awaited here
            if one.told:
                break
            results.follow(comer)
        assert one.told
        results.follow(late[0])
        await until(lambda: late[0].told, "and those are told then")


async def test_who_waits_for_a_round_that_the_log_has_let_go_of_is_told_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(results_module, "POLL_S", 60)  # However slow its thread is, it finds more.
    log, now_ms, polls = a_log(), 0, 0
    write(log, "late", 0)
    write(log, "one", 1)

    class Busy(PatientConsumer):
        """What the round is to end with goes, and there is always more of the other partition."""

        def poll(self, max_records: int, timeout_s: float) -> list[LogRecord]:
            nonlocal polls
            polls += 1
            log.delete_records(TopicPartition(TOPIC, 1), 1)
            write(log, "other", 0)
            return super().poll(max_records, timeout_s)

    async with reading(log, Busy, lambda: now_ms) as results:
        one, late = Follower("one", (0, 0)), Follower("late", (0, 0))
        results.follow(one)
        await until(lambda: polls > 3, "reading goes on")
        results.follow(late)
        seen = polls
        await until(lambda: polls > seen + 3, "the round goes on")
        assert (one.told, late.told) == ([], [])
        now_ms += ROUND_LOOK_EVERY_MS
        await until(lambda: late.told == [0], "it is told")


async def test_who_follows_as_a_round_begins_for_others_begins_one_of_its_own() -> None:
    """It was held by a gateway that knew of one partition."""
    log, loop = a_log(), asyncio.get_running_loop()
    write(log, "two", 0)
    write(log, "one", 1)
    one, two = Follower("one", (1, 0)), Follower("two", (0,))
    changes = 1

    class Watched(PatientConsumer):
        def watermarks(self, partition: TopicPartition) -> tuple[int, int]:
            nonlocal changes
            if changes and partition.partition == 1:
                changes -= 1
                loop.call_soon_threadsafe(change)
            return super().watermarks(partition)

    async with reading(log, Watched) as results:

        def change() -> None:
            results.leave(one)
            results.follow(two)

        results.follow(one)
        await until(lambda: two.told == [0], "it is told")


async def test_nothing_more_is_read_while_somebody_has_enough() -> None:
    log = a_log()
    async with reading(log) as results:
        one = Follower("one", (0, 0))
        one.has_room.clear()
        results.follow(one)
        write(log, "one", *range(200))
        await until(lambda: one.told, "the first are told")
        await asyncio.sleep(0.2)
        assert len(one.told) < 100
        one.has_room.set()
        await until(lambda: len(one.told) == 200, "the others are told")


async def test_a_reader_that_fails_is_opened_anew() -> None:
    log, failures = a_log(), [LogError("broken", retriable=False), LogError("later", retriable=True)]

    class Failing(PatientConsumer):
        def poll(self, max_records: int, timeout_s: float) -> list[LogRecord]:
            if failures:
                raise failures.pop()
            return super().poll(max_records, timeout_s)

    async with reading(log, Failing) as results:
        one = Follower("one", (0, 0))
        results.follow(one)
        write(log, "one", 0, 1)
        await until(lambda: sorted(one.told) == [0, 1], "it is told all the same")


async def test_what_names_no_line_is_passed_over() -> None:
    log = a_log()
    async with reading(log) as results:
        one = Follower("one", (0, 0))
        results.follow(one)
        log.append(TOPIC, b"{}", key="nonsense")
        log.append(TOPIC, b"{}", key=None)
        write(log, "one", 0)
        await until(lambda: one.told == [0], "the line behind it is told")


async def test_who_leaves_takes_nothing_from_who_follows_in_its_stead() -> None:
    log = a_log()
    async with reading(log) as results:
        old, new = Follower("one", (0, 0)), Follower("one", (0, 0))
        results.follow(old)
        results.follow(new)
        results.leave(old)
        write(log, "one", 0, 1)
        await until(lambda: sorted(new.told) == [0, 1], "the new one is told")


async def test_what_stands_on_the_log_and_was_not_told_yet_is_known() -> None:
    log = a_log()
    write(log, "one", 0, 1, 2)
    results = Results(lambda: PatientConsumer(log, None, "reader", "earliest"), TOPIC)
    one = Follower("one", (2, 0))
    results.follow(one)
    assert await results.unread(one) == {1: 1}
    write(log, "one", 4)
    assert await results.unread(one) == {0: 3, 1: 1}
    await results.close()
