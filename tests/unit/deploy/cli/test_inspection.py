import uuid

from deploy.cli.inspection import shown_state, worker_states
from schemas.worker import EngineFailing, WorkerState
from streams.log.kafka import KafkaProducer
from streams.log.port import TopicPartition
from streams.log.watch import Offsets, lag_by_topic
from streams.provisioning import provision
from streams.settings import KafkaSettings
from streams.topics import Topics


def test_lag_adds_up_partitions_and_never_goes_below_zero() -> None:
    first, second = TopicPartition("usage", 0), TopicPartition("usage", 1)
    committed: dict[str, Offsets] = {"billing": {first: 5, second: 9, TopicPartition("gone", 0): 1}, "gateways": {}}
    ends = {first: 7, second: 8}
    assert lag_by_topic(committed, ends) == {"billing": {"usage": 2}, "gateways": {}}


def test_a_worker_whose_lease_has_passed_is_gone() -> None:
    worker = WorkerState(
        worker_id="w", pool="default", model="m", engine="simulated", state="ready", beat_at_ms=1_000, lease_ms=4_000
    )
    assert [shown_state(worker, now_ms) for now_ms in (1_000, 4_999, 5_000)] == ["ready", "ready", "gone"]
    failing = worker.model_copy(update={"failing": EngineFailing(until_ms=1_500, failed=11, attempts=20)})
    shown = [shown_state(failing, now_ms) for now_ms in (1_000, 4_999, 5_000)]
    assert shown == ["engine fails (11 of 20)", "engine fails (11 of 20)", "gone"]


def test_the_last_heartbeat_of_each_worker_that_has_not_gone(kafka_settings: KafkaSettings) -> None:
    topics = Topics(f"t{uuid.uuid4().hex[:8]}", ["default"])
    provision(kafka_settings, [topics.workers])
    assert worker_states(kafka_settings, topics) == []
    producer = KafkaProducer(kafka_settings, "beats")

    def beat(worker_id: str, beat_at_ms: int) -> None:
        state = WorkerState(
            worker_id=worker_id, pool="default", model="m", engine="simulated", state="ready", beat_at_ms=beat_at_ms,
            lease_ms=4_000,
        )  # fmt: skip
        producer.produce(topics.workers.name, state.encode(), key=worker_id)

    for at_ms in (1, 2):
        for worker_id in ("b", "gone", "a"):
            beat(worker_id, at_ms)
    producer.produce(topics.workers.name, None, key="gone")
    producer.produce(topics.workers.name, b"{", key="of another version")
    assert producer.flush(30) == 0
    states = worker_states(kafka_settings, topics)
    assert [(state.worker_id, state.beat_at_ms) for state in states] == [("a", 2), ("b", 2)]
