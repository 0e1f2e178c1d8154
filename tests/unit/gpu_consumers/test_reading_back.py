"""The threads that read `generated` back: what fails goes on where it stopped, and old asks hold up no young ones."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from gpu_consumers.core.effects import AskReadBack
from gpu_consumers.core.takeover import Finding, ReadBack
from gpu_consumers.shell import reading_back
from gpu_consumers.shell.reading_back import ReadingBack
from streams.log.port import LogConsumer, LogError, LogRecord, TopicPartition
from tests.unit.gpu_consumers.fleet import TOPICS
from tests.unit.gpu_consumers.test_takeover import takeovers

GENERATED = TOPICS.generated
DEADLINE_S = 60.0


@dataclass
class FlakyLog:
    """Partition 0 of `generated`: gives a few records per pass, then fails; `hangs_at`: fails from that offset on."""

    values: Sequence[bytes]
    reads: list[int] = field(default_factory=list)
    hangs_at: int | None = None
    failures: int = 0

    def reader(self) -> LogConsumer:
        return cast(LogConsumer, _Reader(self))


class _Reader:
    def __init__(self, log: FlakyLog) -> None:
        self._log = log
        self._position = 0
        self._polls = 0

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._position = next(iter(positions.values()), 0)

    def poll(self, _max_records: int, _timeout_s: float) -> list[LogRecord]:
        log, first = self._log, self._position
        offsets = range(first, min(first + 3, len(log.values)))
        self._polls += 1
        if self._polls > 1 or (log.hangs_at is not None and offsets and offsets[-1] >= log.hangs_at > first - 3):
            log.failures += 1
            raise LogError("scripted", retriable=True)
        self._position = offsets.stop
        log.reads += offsets
        return [LogRecord(GENERATED.name, 0, each, None, log.values[each], (), 0) for each in offsets]

    def end_reached(self, _partition: TopicPartition) -> int:
        return 0

    def close(self) -> None: ...


@dataclass
class Heard:
    """In the core's place."""

    answers: dict[str, Finding] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)

    def read_back(self, answer: ReadBack, _now_ms: int) -> None:
        response_id = answer.ask.response_id
        assert response_id not in self.answers, "answered once"
        self.answers[response_id] = answer.finding

    def is_read_back(self, response_id: str, _attempt_id: str) -> bool:
        return response_id not in self.answers and response_id not in self.ended


class Reading:
    def __init__(self, values: Sequence[bytes]) -> None:
        self.log = FlakyLog(values)
        self.core = Heard()
        self.changed = asyncio.Event()
        self.reading_back = ReadingBack(
            self.core,  # type: ignore[arg-type]
            GENERATED, self.log.reader, lambda: 0, self.changed.set, lambda event: event(),
        )  # fmt: skip
        self.task = asyncio.create_task(self.reading_back.ask_read_backs())

    async def failed(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not self.log.failures:  # noqa: ASYNC110 - a thread counts them
                await asyncio.sleep(0.005)

    async def answered(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.core.answers) < count:
                self.changed.clear()
                await self.changed.wait()

    async def close(self) -> None:
        self.reading_back.close()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
async def open_reading(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Reading]]:
    monkeypatch.setattr(reading_back, "RETRY_S", 0.01)
    readings: list[Reading] = []
    yield readings
    for reading in readings:
        await reading.close()


async def test_a_log_that_fails_again_and_again_is_read_once(open_reading: list[Reading]) -> None:
    values, asks = takeovers(count=10, tokens=20)
    reading = Reading(values)
    open_reading.append(reading)
    for ask in asks:
        reading.reading_back.ask(ask)
    await reading.answered(10)
    assert set(reading.core.answers.values()) == {"interrupted"}
    assert reading.log.reads[: len(values)] == list(range(len(values)))
    assert len(reading.log.reads) <= len(values) + 2, "what came with the last records of a pass"


async def test_what_is_asked_for_in_one_burst_is_read_in_one_pass(
    open_reading: list[Reading], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_back, "GATHER_S", 0.2)
    values, asks = takeovers(count=10, tokens=20)
    reading = Reading(values)
    open_reading.append(reading)
    for ask in asks:
        reading.reading_back.ask(ask)
        for _ in range(5):
            await asyncio.sleep(0)
    await reading.answered(10)
    assert reading.log.reads[: len(values)] == list(range(len(values)))


async def test_an_ask_that_goes_far_back_holds_up_no_young_one(
    open_reading: list[Reading], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_back, "FAR_OFFSETS", 10)
    values, asks = takeovers(count=10, tokens=20)
    reading = Reading(values)
    open_reading.append(reading)
    reading.log.hangs_at = 6
    reading.reading_back.ask(asks[0])
    await reading.failed()
    last = asks[9]
    young = AskReadBack(last.response_id, last.attempt_id, 0, last.fence_offset - 1, last.fence_offset)
    reading.reading_back.ask(young)
    await reading.answered(1)
    assert reading.core.answers == {young.response_id: "generate"}


async def test_what_ended_meanwhile_is_not_read_on_for(open_reading: list[Reading]) -> None:
    values, asks = takeovers(count=2, tokens=50)
    reading = Reading(values)
    open_reading.append(reading)
    reading.log.hangs_at = 6
    reading.reading_back.ask(asks[0])
    await reading.failed()
    reading.core.ended.add(asks[0].response_id)
    reading.log.hangs_at = None
    reading.reading_back.ask(asks[1])
    await reading.answered(1)
    assert list(reading.core.answers) == [asks[1].response_id]
