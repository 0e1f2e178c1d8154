"""What a consumer's thread has read before anybody asked for it, when its partition goes."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import cast

from streams.log.consumer_thread import ConsumerThread
from streams.log.port import LogConsumer, LogRecord, OnPartitions, TopicPartition

DEADLINE_S = 60.0
PLACE = TopicPartition("t", 0)


class Scripted:
    """Gives two records, one by one; its partition goes within the poll after them."""

    def __init__(self) -> None:
        self._polls = 0
        self._on_revoke: OnPartitions = lambda _partitions: None

    def subscribe(
        self,
        _topics: Sequence[str],
        *,
        on_assign: OnPartitions,
        on_revoke: OnPartitions,
        on_lost: OnPartitions,
    ) -> None:
        self._on_revoke = on_revoke

    def poll(self, _max_records: int, timeout_s: float) -> list[LogRecord]:
        self._polls += 1
        if self._polls <= 2:
            return [LogRecord(PLACE.topic, PLACE.partition, self._polls - 1, None, b"", (), 0)]
        if self._polls == 3:
            self._on_revoke([PLACE])
        time.sleep(timeout_s)
        return []

    def start_commit(
        self, _offsets: Mapping[TopicPartition, int], *, metadata: Mapping[TopicPartition, str] | None = None
    ) -> Future[None]:
        return Future()

    def pause(self, _partitions: Iterable[TopicPartition]) -> None: ...

    def resume(self, _partitions: Iterable[TopicPartition]) -> None: ...

    def assignment(self) -> list[TopicPartition]:
        return []

    def close(self) -> None: ...


async def test_what_was_read_early_goes_with_its_partition() -> None:
    """While a commit is open the thread polls for its outcome, and keeps what comes; then the partition goes."""
    thread = ConsumerThread(cast(LogConsumer, Scripted()))
    gone = asyncio.Event()

    async def on_revoke(_partitions: Sequence[TopicPartition]) -> None:
        gone.set()

    await thread.subscribe([PLACE.topic], on_revoke=on_revoke)
    async with asyncio.timeout(DEADLINE_S):
        assert [record.offset for record in await thread.poll()] == [0]
        committing = asyncio.create_task(thread.commit({PLACE: 1}))
        await gone.wait()
    assert await thread.poll(0.1) == []
    committing.cancel()
    await asyncio.gather(committing, return_exceptions=True)
    await thread.close()
