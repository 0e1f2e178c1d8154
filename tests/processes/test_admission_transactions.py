"""A producer whose client writes in transactions: markers and aborted records stand between what it meant to send."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer

from streams.log.kafka import KafkaConsumer
from streams.log.port import TopicPartition
from tests.processes.region import Region, job_id, now_ms
from tests.servers import until

BODY = {"model": "default", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
STALL_S = 5.0


class Transactional:
    """Writes whole transactions to one partition of the intake."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._producer = Producer(
            {"bootstrap.servers": region.kafka.bootstrap, "transactional.id": f"{region.name}-producer"}
        )
        self._producer.init_transactions(60)

    @contextmanager
    def transaction(self, *custom_ids: str, partition: int) -> Iterator[None]:
        """Open, with these jobs written and acknowledged. Committed at the end."""
        self._producer.begin_transaction()
        for custom_id in custom_ids:
            value, headers = self._region.signed_job(custom_id, BODY)
            topic = self._region.topics.intake_batch.name
            self._producer.produce(topic, value, custom_id, partition=partition, headers=list(headers))
        assert self._producer.flush(60) == 0
        yield
        self._producer.commit_transaction(60)

    def commit(self, *custom_ids: str, partition: int) -> None:
        with self.transaction(*custom_ids, partition=partition):
            pass

    def abort(self, *custom_ids: str, partition: int) -> None:
        with pytest.raises(KeyboardInterrupt), self.transaction(*custom_ids, partition=partition):
            raise KeyboardInterrupt
        self._producer.abort_transaction(60)


@pytest.mark.long
def test_jobs_written_in_transactions_are_admitted_once_committed_and_never_when_aborted(region: Region) -> None:
    region.beat()
    producer = Transactional(region)
    intake = region.topics.intake_batch.name
    kept = ["kept-1", "kept-2", "kept-3", "kept-4", "plain"]
    with (
        region.admission(SLUICE_ADMISSION__STALL_S=str(STALL_S)) as process,
        # Of the group, to see what it has committed.
        region.member_of("admission") as watcher,
    ):
        producer.commit("kept-1", partition=0)
        producer.commit("kept-2", partition=1)
        region.read_until([job_id(region, "kept-1"), job_id(region, "kept-2")])
        producer.abort("gone-1", "gone-2", "gone-3", partition=0)
        producer.commit("kept-3", partition=0)
        producer.commit("kept-4", partition=1)
        producer.abort("gone-4", partition=1)
        with producer.transaction("late", partition=2):
            # The ends of both partitions are a marker now, and stay it for longer than the watchdog's patience.
            region.read_until([job_id(region, "kept-3"), job_id(region, "kept-4")])
            patient_until_ms = now_ms() + 2_000 * STALL_S
            until(lambda: now_ms() > patient_until_ms or process.poll() is not None, "the watchdog's looks")
            assert process.poll() is None, region.logs()
            assert job_id(region, "late") not in region.written.concluded, "its transaction is still open"
        region.job("plain", BODY)
        region.flush()
        region.read_until([job_id(region, custom_id) for custom_id in (*kept, "late")])
        until(lambda: committed(watcher, intake)[0] >= 7, "the commit behind what was aborted")
        assert process.poll() is None, region.logs()
    assert region.written.concluded == {job_id(region, custom_id) for custom_id in (*kept, "late")}
    assert not region.written.endings


def committed(watcher: KafkaConsumer, topic: str) -> list[int]:
    """Per partition; -1 where nothing is."""
    positions = watcher.committed([TopicPartition(topic, partition) for partition in range(2)])
    return [-1 if position.offset is None else position.offset for _, position in sorted(positions.items())]
