"""A partition that has lag and does not move ends the process; nothing else does."""

import queue
from collections.abc import Iterable, Mapping
from functools import partial

import pytest

from agents.admission.watchdog import Excuses, Progress, StallDetector, Watchdog
from streams.log.memory import MemoryConsumer, MemoryLog
from streams.log.port import Committed, LogConsumer, LogError, LogRecord, TopicPartition
from tests.servers import until

P = TopicPartition("requests", 0)
Q = TopicPartition("requests", 1)


def test_lag_without_movement_for_long_enough_is_a_stall() -> None:
    detector = StallDetector(30)
    assert detector.observe(0, {P: Progress(5, 9)}) == []
    assert detector.observe(29, {P: Progress(5, 20)}) == []
    assert detector.observe(30, {P: Progress(5, 20)}) == [P]


def test_movement_starts_the_clock_anew() -> None:
    detector = StallDetector(30)
    detector.observe(0, {P: Progress(5, 9)})
    detector.observe(20, {P: Progress(6, 9)})
    assert detector.observe(49, {P: Progress(6, 9)}) == []
    assert detector.observe(50, {P: Progress(6, 9)}) == [P]


def test_an_idle_partition_is_never_a_stall() -> None:
    detector = StallDetector(30)
    for now in (0, 1_000, 2_000):
        assert detector.observe(now, {P: Progress(9, 9), Q: Progress(None, 0)}) == []
    assert detector.observe(2_001, {P: Progress(9, 10)}) == []


def test_what_was_deleted_is_not_lag() -> None:
    detector = StallDetector(1)
    detector.observe(0, {P: Progress(None, 9, first=9)})
    assert detector.observe(100, {P: Progress(None, 9, first=9)}) == []


def test_a_partition_that_was_given_away_starts_anew() -> None:
    detector = StallDetector(30)
    detector.observe(0, {P: Progress(5, 9)})
    detector.observe(10, {})
    assert detector.observe(40, {P: Progress(5, 9)}) == []


def test_an_excuse_holds_for_its_topic_and_its_time() -> None:
    now = [0.0]
    excuses = Excuses(lambda: now[0])
    excuses.hold("intake", 5)
    assert excuses.excused("intake")
    assert not excuses.excused("requests")
    now[0] = 5
    assert not excuses.excused("intake")
    excuses.hold("", 1)
    assert excuses.excused("requests")


def test_who_waits_for_a_moment_ends_no_longer_wait_of_another() -> None:
    now = [0.0]
    excuses = Excuses(lambda: now[0])
    excuses.hold("aside", 60)
    excuses.hold("aside", 2.5)
    now[0] = 59
    assert excuses.excused("aside")
    excuses.end("aside")
    assert not excuses.excused("aside")


def test_the_watchdog_asks_the_broker_and_speaks_once() -> None:
    log = MemoryLog()
    log.create_topic("requests", 2)
    log.append("requests", b"1", partition=0)
    said: queue.Queue[str] = queue.Queue()
    watchdog = Watchdog(
        lambda: log.consumer("admission", "watchdog"),
        lambda: log.consumer(None, "look"),
        lambda: [P, Q],
        Excuses(),
        0.01,
        said.put,
    )
    watchdog.start()
    assert said.get(timeout=60) == "no progress in requests-0"
    watchdog.close()
    assert said.empty()


@pytest.mark.parametrize("broken", ["connecting", "looking"])
def test_a_watchdog_that_breaks_is_no_watchdog_and_says_so(broken: str) -> None:
    log = MemoryLog()
    log.create_topic("requests", 1)
    said: queue.Queue[str] = queue.Queue()

    def consumer() -> LogConsumer:
        if broken == "connecting":
            raise LogError("scripted", retriable=False)
        return log.consumer("admission", "watchdog")

    def owned() -> list[TopicPartition]:
        raise RuntimeError("scripted")

    watchdog = Watchdog(
        consumer, lambda: log.consumer(None, "look"), owned, Excuses(), 0.01, said.put, look_every_s=0.01
    )
    watchdog.start()
    expected = "LogError: scripted" if broken == "connecting" else "RuntimeError: scripted"
    assert said.get(timeout=60) == f"the watchdog itself failed: {expected}"
    watchdog.close()
    assert said.empty()


def test_a_broker_that_does_not_answer_is_asked_again() -> None:
    class Silent(MemoryConsumer):
        asked = 0

        def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
            Silent.asked += 1
            if Silent.asked < 3:
                raise LogError("scripted", retriable=True)
            return super().committed(partitions)

    log = MemoryLog()
    log.create_topic("requests", 1)
    log.append("requests", b"1")
    said: queue.Queue[str] = queue.Queue()
    consumer = Silent(log, "admission", "watchdog", "earliest")
    watchdog = Watchdog(
        lambda: consumer, lambda: log.consumer(None, "look"), lambda: [P], Excuses(), 0.01, said.put, look_every_s=0.01
    )
    watchdog.start()
    assert said.get(timeout=60) == "no progress in requests-0"
    watchdog.close()


def test_offsets_that_hold_no_record_are_no_lag() -> None:
    """A transaction's marker at the end of a partition; later a record behind it."""
    log = MemoryLog()
    log.create_topic("requests", 1)
    looks = 0

    class SkipsMarkers(MemoryConsumer):
        def assign(self, positions: Mapping[TopicPartition, int]) -> None:
            nonlocal looks
            looks += bool(positions)
            super().assign(positions)

        def poll(self, max_records: int, timeout_s: float) -> list[LogRecord]:
            return [record for record in super().poll(max_records, timeout_s) if record.value != b"marker"]

    log.append("requests", b"1")
    log.append("requests", b"marker")
    member = log.consumer("admission", "watchdog")
    member.commit({P: 1})
    said: queue.Queue[str] = queue.Queue()
    reader = partial(SkipsMarkers, log, None, "look", "earliest")
    watchdog = Watchdog(lambda: member, reader, lambda: [P], Excuses(), 0.01, said.put, look_every_s=0.01)
    watchdog.start()
    until(lambda: looks or not said.empty(), "a look at what seems to lag")
    log.append("requests", b"2")
    assert said.get(timeout=60) == "no progress in requests-0"
    watchdog.close()
    assert looks == 2, "it is remembered that nothing stands there"
