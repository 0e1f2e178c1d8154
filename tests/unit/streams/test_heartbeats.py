"""Heartbeats on the log of workers: what one says, and what each worker that is there has said last."""

from contextlib import closing

from schemas.worker import WorkerState
from streams.heartbeats import Heartbeats, said_in
from streams.log.memory import MemoryLog
from streams.log.port import TopicPartition
from streams.log.reading import read_offsets

TOPIC = "local.workers"
NOW = 1_790_000_000_000


def beat(worker_id: str, beat_at_ms: int = NOW) -> WorkerState:
    return WorkerState(
        worker_id=worker_id, pool="default", model="m", engine="simulated", state="ready", beat_at_ms=beat_at_ms,
        lease_ms=4_000,
    )  # fmt: skip


def log_of(*said: tuple[str, bytes | None]) -> MemoryLog:
    log = MemoryLog()
    log.create_topic(TOPIC, 1)
    tell(log, *said)
    return log


def tell(log: MemoryLog, *said: tuple[str, bytes | None]) -> None:
    for worker_id, value in said:
        log.append(TOPIC, value, key=worker_id)


def test_a_record_names_its_worker_whether_that_lives_or_is_buried() -> None:
    log = log_of(("here", beat("here").encode()), ("gone", None))
    with closing(log.consumer(None, "reader")) as reader:
        records = read_offsets(reader, {TopicPartition(TOPIC, 0): range(2)}, float("inf"))
        assert [said_in(record) for record in records] == [("here", beat("here")), ("gone", None)]


def test_each_look_tells_what_was_said_since_and_keeps_what_each_has_said_last() -> None:
    first, later, other = beat("here"), beat("here", NOW + 1_000), beat("gone")
    log = log_of(("here", first.encode()), ("broken", b"{"), ("gone", other.encode()))
    heartbeats = Heartbeats(log.consumer(None, "reader"), TOPIC)
    assert heartbeats.read() == [first, other], "but for what cannot be read"
    tell(log, ("gone", None), ("here", later.encode()))
    assert heartbeats.read() == [later]
    assert heartbeats.workers == {"here": later}
    assert heartbeats.read() == []
    heartbeats.close()
