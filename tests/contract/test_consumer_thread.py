"""The log for asyncio processes, over real Kafka."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Consumer

from streams.log.consumer_thread import POLL_RETRY_S, ConsumerThread
from streams.log.kafka import KafkaConsumer, KafkaProducer
from streams.log.kafka import consumer as kafka_consumer
from streams.log.port import Committed, LogError, LogRecord, TopicPartition
from streams.log.producer_thread import ProducerThread
from streams.provisioning import provision
from streams.settings import KafkaSettings
from streams.topics import HOUR_MS, Topic

DEADLINE_S = 60.0
MISSING_PARTITION = 7
_names = count(1)


@pytest.fixture
def topic(kafka_settings: KafkaSettings) -> str:
    name = f"threads-{next(_names)}"
    provision(kafka_settings, [Topic(name, "key", dict, 2, HOUR_MS)])
    return name


@pytest.fixture
def group() -> str:
    return f"threads-{next(_names)}"


@asynccontextmanager
async def consuming(
    settings: KafkaSettings, group: str | None, *, keep_alive_s: float = 1, hook_timeout_s: float = 10
) -> AsyncIterator[ConsumerThread]:
    consumer = KafkaConsumer(settings, group, f"consumer-{next(_names)}")
    thread = ConsumerThread(consumer, max_records=10, keep_alive_s=keep_alive_s, hook_timeout_s=hook_timeout_s)
    try:
        yield thread
    finally:
        await thread.close()


@asynccontextmanager
async def producing(settings: KafkaSettings) -> AsyncIterator[ProducerThread]:
    thread = ProducerThread(KafkaProducer(settings, f"producer-{next(_names)}"))
    try:
        yield thread
    finally:
        assert await thread.close(DEADLINE_S) == 0


async def write(settings: KafkaSettings, topic: str, records: int, *, partition: int = 0) -> None:
    async with producing(settings) as producer:
        for number in range(records):
            producer.produce(topic, b"%d" % number, partition=partition)


async def read(consumer: ConsumerThread, records: int) -> list[LogRecord]:
    found: list[LogRecord] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < records:
            found += await consumer.poll()
    assert len(found) == records
    return found


async def test_send_returns_the_offset_and_what_was_sent_is_read(kafka_settings: KafkaSettings, topic: str) -> None:
    async with producing(kafka_settings) as producer, consuming(kafka_settings, None) as consumer:
        assert await producer.send(topic, b"a", partition=1) == 0
        assert await asyncio.gather(*(producer.send(topic, b"b", partition=1) for _ in range(20))) == [*range(1, 21)]
        await consumer.assign({TopicPartition(topic, 1): 0})

        records = await read(consumer, 21)

        assert [record.offset for record in records] == list(range(21))
        assert await consumer.poll(timeout_s=0.1) == []


async def test_deliveries_are_reported_on_the_loop(kafka_settings: KafkaSettings, topic: str) -> None:
    reported: asyncio.Queue[tuple[int | None, LogError | None]] = asyncio.Queue()
    async with producing(kafka_settings) as producer:
        producer.produce(topic, b"", partition=0, on_delivery=lambda *report: reported.put_nowait(report))
        async with asyncio.timeout(DEADLINE_S):
            assert await reported.get() == (0, None)


async def test_a_failed_send_raises_and_the_producer_lives_on(kafka_settings: KafkaSettings, topic: str) -> None:
    async with producing(kafka_settings) as producer:
        with pytest.raises(LogError, match="UNKNOWN"):
            await producer.send(topic, b"", partition=MISSING_PARTITION)
        assert await producer.send(topic, b"", partition=0) == 0


async def test_a_failed_record_that_nobody_listens_for_ends_the_producer(
    kafka_settings: KafkaSettings, topic: str
) -> None:
    producer = ProducerThread(KafkaProducer(kafka_settings, "producer"))
    producer.produce(topic, b"", partition=MISSING_PARTITION)
    waiting = asyncio.ensure_future(producer.send(topic, b"", partition=MISSING_PARTITION))
    with pytest.raises(LogError, match="UNKNOWN"):
        await waiting
    with pytest.raises(LogError, match="UNKNOWN"):
        await producer.ended()
    with pytest.raises(LogError, match="UNKNOWN"):
        await producer.close(DEADLINE_S)
    with pytest.raises(LogError, match="UNKNOWN"):
        producer.produce("any", b"")


async def test_a_commit_awaited_while_partitions_are_revoked_counts(
    kafka_settings: KafkaSettings, topic: str, group: str
) -> None:
    await write(kafka_settings, topic, 10)
    places = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    events: list[tuple[str, list[TopicPartition]]] = []

    async with consuming(kafka_settings, group) as first:

        async def on_assign(partitions: Sequence[TopicPartition]) -> None:
            events.append(("assigned", list(partitions)))
            await first.seek(places[0], 2)

        async def on_revoke(partitions: Sequence[TopicPartition]) -> None:
            await asyncio.sleep(0)
            await first.commit(dict.fromkeys(partitions, 4), metadata=dict.fromkeys(partitions, "revoked"))
            events.append(("revoked", list(partitions)))

        await first.subscribe([topic], on_assign=on_assign, on_revoke=on_revoke)
        assert [record.offset for record in await read(first, 8)] == list(range(2, 10))
    assert events == [("assigned", places), ("revoked", places)]

    async with consuming(kafka_settings, group) as second:
        assert await second.committed(places) == dict.fromkeys(places, Committed(4, "revoked"))
        await second.subscribe([topic])
        assert [record.offset for record in await read(second, 6)] == list(range(4, 10))


async def test_who_gets_a_partition_back_can_tell_at_once_how_far_another_has_read(
    kafka_settings: KafkaSettings, topic: str, group: str
) -> None:
    for partition in range(2):
        await write(kafka_settings, topic, 3, partition=partition)
    found: list[dict[TopicPartition, Committed]] = []
    async with consuming(kafka_settings, group) as first:

        async def on_assign(partitions: Sequence[TopicPartition]) -> None:
            if partitions:  # a balance that adds nothing is told too
                found.append(await first.committed(partitions))

        async def poll_until(assignments: int) -> None:
            async with asyncio.timeout(DEADLINE_S):
                while len(found) < assignments:
                    await first.poll(0.1)

        await first.subscribe([topic], on_assign=on_assign)
        await poll_until(1)
        async with consuming(kafka_settings, group) as second:
            await second.subscribe([topic])
            reading = asyncio.ensure_future(read(second, 3))
            while not reading.done():
                await first.poll(0.1)
            moved = reading.result()[0].source
            await second.commit({moved: 2})
            before = len(found)  # on a busy machine there may have been more balances
        await poll_until(before + 1)
    assert found[-1][moved] == Committed(2)


class SlowCoordinator(Consumer):
    """librdkafka's client; commits made outside of rebalance callbacks leave when the coordinator answers."""

    asked = threading.Event()
    answers = threading.Event()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._held: list[dict[str, Any]] = []

    def commit(self, *arguments: Any, **options: Any) -> Any:
        if not options.get("asynchronous"):
            return super().commit(*arguments, **options)
        self._held.append(options)
        self.asked.set()
        return None

    def poll(self, *arguments: Any, **options: Any) -> Any:
        while self._held and self.answers.is_set():
            super().commit(**self._held.pop(0))
        return super().poll(*arguments, **options)


@pytest.fixture
def slow_coordinator(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[SlowCoordinator]]:
    SlowCoordinator.answers.clear()
    SlowCoordinator.asked.clear()
    monkeypatch.setattr(kafka_consumer, "Consumer", SlowCoordinator)
    yield SlowCoordinator
    SlowCoordinator.answers.set()


@pytest.mark.parametrize("reads_on", [True, False])
async def test_a_commit_is_made_at_once_whether_its_member_reads_on_or_waits_for_it(
    kafka_settings: KafkaSettings, topic: str, group: str, reads_on: bool
) -> None:
    """On a quiet topic one poll follows the other, and none of them is at an end by itself."""
    place = TopicPartition(topic, 0)
    await write(kafka_settings, topic, 20)
    async with consuming(kafka_settings, group, keep_alive_s=DEADLINE_S) as consumer:
        await consumer.subscribe([topic])
        await read(consumer, 20)
        for offset in range(1, 20):
            committing = asyncio.ensure_future(consumer.commit({place: offset}))
            while reads_on and not committing.done():
                assert await consumer.poll(0.01) == []
            await committing
        assert await consumer.committed([place]) == {place: Committed(19)}


async def test_records_come_while_a_commit_waits_for_its_coordinator(
    kafka_settings: KafkaSettings, topic: str, group: str, slow_coordinator: type[SlowCoordinator]
) -> None:
    place = TopicPartition(topic, 0)
    await write(kafka_settings, topic, 1)
    async with consuming(kafka_settings, group) as consumer:
        await consumer.subscribe([topic])
        await read(consumer, 1)
        committing = asyncio.ensure_future(consumer.commit({place: 1}))
        assert await asyncio.to_thread(slow_coordinator.asked.wait, DEADLINE_S)
        await write(kafka_settings, topic, 3)
        assert [record.offset for record in await read(consumer, 3)] == [1, 2, 3]
        assert not committing.done()
        slow_coordinator.answers.set()
        await committing
        assert await consumer.committed([place]) == {place: Committed(1)}


async def test_a_commit_that_waits_holds_up_no_balance_and_what_is_committed_then_counts(
    kafka_settings: KafkaSettings, topic: str, group: str, slow_coordinator: type[SlowCoordinator]
) -> None:
    places = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    await write(kafka_settings, topic, 5)
    revoked: list[TopicPartition] = []
    async with consuming(kafka_settings, group) as first:

        async def on_revoke(partitions: Sequence[TopicPartition]) -> None:
            with pytest.raises(LogError, match="a balance began"):
                await committing
            if not revoked:
                await first.commit(dict.fromkeys(partitions, 4))
            revoked.extend(partitions)

        await first.subscribe([topic], on_revoke=on_revoke)
        await read(first, 5)
        committing = asyncio.ensure_future(first.commit({places[0]: 1}))
        assert await asyncio.to_thread(slow_coordinator.asked.wait, DEADLINE_S)
        async with consuming(kafka_settings, group) as second:
            await second.subscribe([topic])
            async with asyncio.timeout(DEADLINE_S):
                while not revoked:
                    await asyncio.gather(first.poll(0.1), second.poll(0.1))
            assert await second.committed(revoked) == dict.fromkeys(revoked, Committed(4))
            slow_coordinator.answers.set()


async def test_a_slow_loop_does_not_hold_up_the_group_and_loses_nothing(
    kafka_settings: KafkaSettings, topic: str, group: str
) -> None:
    for partition in range(2):
        await write(kafka_settings, topic, 30, partition=partition)
    async with consuming(kafka_settings, group, keep_alive_s=0.05) as slow:
        await slow.subscribe([topic])
        taken = await slow.poll(DEADLINE_S)
        assert len(taken) <= 10
        # It does not poll now; still, a second member gets its share.
        async with consuming(kafka_settings, group) as other:
            await other.subscribe([topic])
            [gained] = {record.source for record in await read(other, 30)}
        kept = [place for place in await slow.assignment() if place != gained]
        found = taken
        async with asyncio.timeout(DEADLINE_S):
            while sum(record.source in kept for record in found) < 30:
                found = found + await slow.poll()

    assert [record.offset for record in found if record.source in kept] == list(range(30))


async def test_a_cancelled_poll_loses_nothing(kafka_settings: KafkaSettings, topic: str) -> None:
    async with producing(kafka_settings) as producer, consuming(kafka_settings, None) as consumer:
        await consumer.assign({TopicPartition(topic, 0): 0})
        found: list[LogRecord] = []
        for number in range(20):
            polling = asyncio.ensure_future(consumer.poll())
            await asyncio.sleep(0)
            polling.cancel()
            assert await producer.send(topic, b"", partition=0) == number
            if not polling.cancelled():
                found += polling.result()

        assert polling.done()
        found += await read(consumer, 20 - len(found))
        assert [record.offset for record in found] == list(range(20))


async def test_a_seek_drops_what_was_read_before_it(kafka_settings: KafkaSettings, topic: str) -> None:
    await write(kafka_settings, topic, 30)
    place = TopicPartition(topic, 0)
    async with consuming(kafka_settings, None) as consumer:
        await consumer.assign({place: 0})
        assert (await consumer.poll())[0].offset == 0
        assert await consumer.poll(timeout_s=0) == []  # leaves a batch on its way
        await consumer.seek(place, 25)
        assert [record.offset for record in await read(consumer, 5)] == list(range(25, 30))
        await consumer.pause([place])
        await consumer.seek(place, 0)
        assert await consumer.poll(timeout_s=0.2) == []
        await consumer.resume([place])
        assert (await consumer.poll())[0].offset == 0


async def test_an_error_of_a_hook_is_raised_by_poll_and_by_all_that_follows(
    kafka_settings: KafkaSettings, topic: str, group: str
) -> None:
    consumer = ConsumerThread(KafkaConsumer(kafka_settings, group, "consumer"))

    async def broken(_partitions: Sequence[TopicPartition]) -> None:
        raise ZeroDivisionError

    await consumer.subscribe([topic], on_assign=broken)
    with pytest.raises(ZeroDivisionError):
        await consumer.poll(DEADLINE_S)
    with pytest.raises(ZeroDivisionError):
        await consumer.assignment()
    await consumer.close()


async def test_a_hook_that_hangs_fails_loudly(kafka_settings: KafkaSettings, topic: str, group: str) -> None:
    consumer = ConsumerThread(KafkaConsumer(kafka_settings, group, "consumer"), hook_timeout_s=0.05)

    async def hangs(_partitions: Sequence[TopicPartition]) -> None:
        await asyncio.Event().wait()

    await consumer.subscribe([topic], on_assign=hangs)
    with pytest.raises(TimeoutError, match="hook took longer"):
        async with asyncio.timeout(DEADLINE_S):
            await consumer.poll()
    await consumer.close()


async def test_a_missing_topic_is_raised_by_poll(kafka_settings: KafkaSettings, group: str) -> None:
    consumer = ConsumerThread(KafkaConsumer(kafka_settings, group, "consumer"))
    await consumer.subscribe(["no-such-topic"])
    with pytest.raises(LogError, match="no-such-topic"):
        await consumer.poll(DEADLINE_S)
    await consumer.close()
    with pytest.raises(LogError, match="no-such-topic"):
        await consumer.poll()


class StumblingConsumer(KafkaConsumer):
    """Its polls fail with these errors first."""

    def __init__(self, settings: KafkaSettings, group: str | None, errors: Sequence[LogError]) -> None:
        super().__init__(settings, group, f"consumer-{next(_names)}")
        self._scripted = list(errors)
        self.stumbled = threading.Event()

    def poll(self, max_records: int, timeout_s: float) -> list[LogRecord]:
        if self._scripted:
            self.stumbled.set()
            raise self._scripted.pop(0)
        return super().poll(max_records, timeout_s)


async def test_a_retriable_error_is_raised_once_and_the_consumer_goes_on(
    kafka_settings: KafkaSettings, topic: str
) -> None:
    await write(kafka_settings, topic, 5)
    stumbles = [LogError(f"stumbled {number}", retriable=True) for number in (1, 2)]
    consumer = ConsumerThread(StumblingConsumer(kafka_settings, None, stumbles))
    await consumer.assign({TopicPartition(topic, 0): 0})
    for number in (1, 2):
        with pytest.raises(LogError, match=f"stumbled {number}") as raised:
            await consumer.poll(DEADLINE_S)
        assert raised.value.retriable
    assert await consumer.assignment() == [TopicPartition(topic, 0)]
    assert [record.offset for record in await read(consumer, 5)] == list(range(5))
    await consumer.close()


async def test_a_caller_that_polls_again_after_each_retriable_error_waits_in_between(
    kafka_settings: KafkaSettings,
) -> None:
    consumer = ConsumerThread(StumblingConsumer(kafka_settings, None, [LogError("stumbled", retriable=True)] * 1_000))
    begun_s = time.monotonic()
    for _ in range(4):
        with pytest.raises(LogError, match="stumbled"):
            await consumer.poll(DEADLINE_S)
    assert time.monotonic() - begun_s >= 3 * POLL_RETRY_S
    await consumer.close()


async def test_an_error_while_nobody_polls_is_raised_by_the_next_poll(
    kafka_settings: KafkaSettings, topic: str
) -> None:
    await write(kafka_settings, topic, 5)
    stumbling = StumblingConsumer(kafka_settings, None, [LogError("stumbled", retriable=True)])
    consumer = ConsumerThread(stumbling, keep_alive_s=0.01)
    await consumer.assign({TopicPartition(topic, 0): 0})
    assert await asyncio.to_thread(stumbling.stumbled.wait, DEADLINE_S)
    with pytest.raises(LogError, match="stumbled"):
        await consumer.poll(DEADLINE_S)
    assert len(await read(consumer, 5)) == 5
    await consumer.close()


async def test_what_ended_the_consumer_is_never_called_retriable(
    kafka_settings: KafkaSettings, topic: str, group: str
) -> None:
    """A loop that goes on after retriable errors must not spin on a dead thread."""
    fatal = ConsumerThread(StumblingConsumer(kafka_settings, None, [LogError("fenced", retriable=False)]))
    hooked = ConsumerThread(KafkaConsumer(kafka_settings, group, "consumer"))

    async def times_out(_partitions: Sequence[TopicPartition]) -> None:
        raise LogError("fenced by a hook", retriable=True)

    await hooked.subscribe([topic], on_assign=times_out)
    for consumer in (fatal, hooked):
        for _ in range(2):
            with pytest.raises(LogError, match="fenced") as raised:
                await consumer.poll(DEADLINE_S)
            assert not raised.value.retriable
        await consumer.close()


async def test_a_closed_consumer_says_so(kafka_settings: KafkaSettings, topic: str) -> None:
    consumer = ConsumerThread(KafkaConsumer(kafka_settings, None, "consumer"))
    await consumer.close()
    with pytest.raises(LogError, match="closed"):
        await consumer.poll()
    with pytest.raises(LogError, match="closed"):
        await consumer.watermarks(TopicPartition(topic, 0))
    await consumer.close()
