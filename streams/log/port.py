"""The port to the log. `log.kafka` implements it over librdkafka, `log.memory` in memory with scripted faults.

Duties of every implementation, held by one contract suite: records of a partition are seen in offset order; a produced
record is delivered at least once or its `on_delivery` gets an error; a commit is what the next owner of the partition
starts from; nothing is committed that was not asked for.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

MAX_RECORD_BYTES = 4_194_304
COMMIT_TIMEOUT_S = 5.0
"""How long a commit is waited for."""
MAX_METADATA_BYTES = 4_096
"""Of a commit, per partition: what a broker takes by default (`offset.metadata.max.bytes`)."""

Headers = Sequence[tuple[str, bytes]]


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class LogRecord:
    """`timestamp_ms` is the broker's append time on topics that say so, else the writer's."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp_ms: int

    @property
    def source(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def header(self, name: str) -> bytes | None:
        """The last header of that name."""
        return next((value for key, value in reversed(self.headers) if key == name), None)


@dataclass(frozen=True, slots=True)
class Committed:
    """A group's position in one partition, and what its last commit said of it. `offset` None: nothing committed."""

    offset: int | None
    metadata: str = ""


class LogError(Exception):
    """The log refused or failed. `retriable` says whether the same call may succeed later."""

    def __init__(self, message: str, *, retriable: bool) -> None:
        super().__init__(message)
        self.retriable = retriable


class RecordTooLarge(LogError):
    """The log takes no record of this size, now or later. Nothing was written."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retriable=False)


class ProducerQueueFull(LogError):
    """The bounded local queue is full: call `poll`, or push back on the caller."""

    def __init__(self) -> None:
        super().__init__("the producer's local queue is full", retriable=True)


# Called with the record's offset, or with the error that made delivery fail for good.
OnDelivery = Callable[[int | None, LogError | None], None]
OnPartitions = Callable[[Sequence[TopicPartition]], None]


def check_metadata(offsets: Mapping[TopicPartition, int], metadata: Mapping[TopicPartition, str]) -> None:
    """For implementations of `LogConsumer.commit`: raises its ValueError."""
    for partition, text in metadata.items():
        if partition not in offsets:
            raise ValueError(f"metadata of {partition}, which is not committed")
        if (size := len(text.encode())) > MAX_METADATA_BYTES:
            raise ValueError(f"{size} bytes of metadata for {partition}, at most {MAX_METADATA_BYTES} are taken")


class LogProducer(Protocol):
    """Idempotent, `acks=all`. `produce` never blocks; records to one partition keep their order."""

    def produce(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: str | None = None,
        partition: int | None = None,
        headers: Headers = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Raises ProducerQueueFull, RecordTooLarge.

        Without `partition` the key's hash decides (murmur2, as Java clients do).
        """

    def poll(self, timeout_s: float = 0.0) -> int:
        """Runs delivery callbacks on the calling thread; returns how many."""

    def flush(self, timeout_s: float) -> int:
        """Waits for outstanding deliveries; returns how many are still outstanding at the deadline."""


class LogConsumer(Protocol):
    """One member of a group, or an independent reader. Used from one thread. Auto-commit is off."""

    def subscribe(
        self,
        topics: Sequence[str],
        *,
        on_assign: OnPartitions | None = None,
        on_revoke: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        """Joins the group. Callbacks run inside `poll` or `close`; a commit inside `on_revoke` still counts."""

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Reads these partitions from these offsets, outside of any group balance."""

    def poll(self, max_records: int, timeout_s: float) -> list[LogRecord]:
        """Up to `max_records`, waiting at most `timeout_s` for the first; never for the rest. Raises LogError.

        None is of a partition that `on_revoke` or `on_lost` named during the call.
        """

    def pause(self, partitions: Iterable[TopicPartition]) -> None: ...

    def resume(self, partitions: Iterable[TopicPartition]) -> None: ...

    def seek(self, position: TopicPartition, offset: int) -> None: ...

    def commit(
        self, offsets: Mapping[TopicPartition, int], *, metadata: Mapping[TopicPartition, str] | None = None
    ) -> None:
        """Synchronous. An offset is the next one to consume; `metadata`, of some of the same partitions, stands beside
        it until that partition's next commit.

        Raises LogError (not retriable: the partition is lost), and ValueError when metadata has no offset to stand
        beside or more than `MAX_METADATA_BYTES`; then nothing was committed.
        """

    def start_commit(
        self, offsets: Mapping[TopicPartition, int], *, metadata: Mapping[TopicPartition, str] | None = None
    ) -> Future[None]:
        """As `commit`, without waiting for the group's coordinator; what is wrong with the call is raised at once.

        The outcome comes while the member polls. While the coordinator is away it stays open: wait with a deadline, and
        cancel. Commits are made in the
        order in which they were begun; inside `on_revoke` this one is made when it returns.
        """

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        """What the group's last commits say, whoever made them. Raises LogError."""

    def assignment(self) -> list[TopicPartition]: ...

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Raises LogError when the topic does not exist."""

    def watermarks(self, partition: TopicPartition) -> tuple[int, int]:
        """First offset kept, and the next one to be written."""

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The next offset to be written of each, in one round trip per broker. Raises LogError."""

    def end_reached(self, partition: TopicPartition) -> int:
        """For independent readers: the end of the partition at which `poll` last arrived, 0 before that.

        It is how a reader learns that the last offsets hold no record. Reset by `assign`.
        """

    def offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int:
        """First offset whose timestamp is not earlier; the end when there is none."""

    def close(self) -> None:
        """Leaves the group, revoking first."""
