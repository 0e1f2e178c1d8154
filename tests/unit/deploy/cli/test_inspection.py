import uuid
from contextlib import closing

from schemas.worker import WorkerState
from streams.clocks import now_ms
from streams.log.kafka import KafkaConsumer, KafkaProducer
from streams.log.port import TopicPartition
from streams.log.watch import Offsets, lag_by_topic
from streams.pool_watch import PoolWatch
from streams.pools_now import PoolsSeen
from streams.provisioning import provision
from streams.service_shares import TenantShare
from streams.settings import KafkaSettings
from streams.topics import Topics


def test_lag_adds_up_partitions_and_never_goes_below_zero() -> None:
    first, second = TopicPartition("usage", 0), TopicPartition("usage", 1)
    committed: dict[str, Offsets] = {"billing": {first: 5, second: 9, TopicPartition("gone", 0): 1}, "gateways": {}}
    ends = {first: 7, second: 8}
    assert lag_by_topic(committed, ends) == {"billing": {"usage": 2}, "gateways": {}}


def test_one_look_sees_the_last_heartbeat_of_each_worker_that_has_not_gone_and_what_was_given_before(
    kafka_settings: KafkaSettings,
) -> None:
    topics = Topics(f"t{uuid.uuid4().hex[:8]}", ["default"])
    provision(kafka_settings, [topics.workers, topics.brownout])

    def seen() -> PoolsSeen:
        with closing(PoolWatch(KafkaConsumer(kafka_settings, None, "status"), topics)) as watch:
            return watch.look(now_ms())

    assert seen().workers == ()
    producer = KafkaProducer(kafka_settings, "beats")

    def beat(worker_id: str, ago_ms: int, given: int) -> None:
        state = WorkerState.model_validate(
            {
                "worker_id": worker_id, "pool": "default", "model": "m", "engine": "simulated", "state": "ready",
                "beat_at_ms": now_ms() - ago_ms, "lease_ms": 4_000, "counts_since_ms": 1,
                "given_of": {"standard": {f"tenant-of-{worker_id}": given}},
            }
        )  # fmt: skip
        producer.produce(topics.workers.name, state.encode(), key=worker_id)

    for ago_ms, given in ((2_000, 50), (1_000, 80)):
        for worker_id in ("b", "gone", "a"):
            beat(worker_id, ago_ms, given)
    producer.produce(topics.workers.name, None, key="gone")
    producer.produce(topics.workers.name, b"{", key="of another version")
    assert producer.flush(30) == 0
    told = seen()
    assert [worker.worker_id for worker in told.workers] == ["a", "b"]
    assert told.shares["default"] == [
        TenantShare(f"tenant-of-{worker_id}", 1 / 3, 30) for worker_id in ("a", "b", "gone")
    ]
