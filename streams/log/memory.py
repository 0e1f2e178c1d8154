"""The log port in memory, single-threaded and deterministic, with faults written as data.

Nothing happens in the background: records reach the log when their producer polls or flushes, and a consumer takes part
in the balance of its group only while it polls. Time is the `clock_ms` that the log was given.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count
from typing import Literal

from streams.log.port import (
    MAX_RECORD_BYTES,
    Committed,
    Headers,
    LogError,
    LogRecord,
    OnDelivery,
    OnPartitions,
    ProducerQueueFull,
    RecordTooLarge,
    TopicPartition,
    check_metadata,
)


class FaultKind(Enum):
    """What strikes a client at a record."""

    CRASH = auto()
    """The process dies before this record is handed out or queued: Crashed is raised, also by every later call.
    Records that its producer had queued are lost; its consumer leaves the group without a revoke."""
    REBALANCE = auto()
    """Consumers only. Before this record the group takes everything away and gives it out again, from the commits."""
    LOST = auto()
    """Consumers only. Before this record the group drops the member (a session timeout); its commits are refused
    until its next poll, which tells it `on_lost` and joins anew."""
    DUPLICATE = auto()
    """A producer's record is stored twice; a consumer is handed the record twice in a row."""
    DELAY = auto()
    """Producers only. The record is stored, but its delivery is reported `polls` polls later, and with it those of
    later records of the same partition."""
    FAIL = auto()
    """Producers only. The record is not stored and its delivery fails."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Strikes client `client_id` at its `at`-th record (from 1), counted over all incarnations of that client id."""

    kind: FaultKind
    client_id: str
    at: int
    polls: int = 1


class Crashed(BaseException):
    """The process that made the call is dead. Not an Exception: nothing that handles errors survives a SIGKILL."""


def murmur2(data: bytes) -> int:
    """The hash by which Kafka's clients choose a key's partition (org.apache.kafka.common.utils.Utils.murmur2)."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


@dataclass(slots=True)
class _Partition:
    first_offset: int = 0
    records: list[LogRecord] = field(default_factory=list)

    @property
    def next_offset(self) -> int:
        return self.first_offset + len(self.records)


@dataclass(slots=True)
class _Group:
    """`target` is what the balance wants; `owner` is what members hold until they have given it up."""

    generation: int = 0
    members: list["MemoryConsumer"] = field(default_factory=list)
    target: dict[TopicPartition, "MemoryConsumer"] = field(default_factory=dict)
    owner: dict[TopicPartition, "MemoryConsumer"] = field(default_factory=dict)
    committed: dict[TopicPartition, Committed] = field(default_factory=dict)


class MemoryLog:
    """The broker: topics, groups, and the script of faults."""

    def __init__(self, clock_ms: Callable[[], int] | None = None, faults: Iterable[Fault] = ()) -> None:
        """Without `clock_ms` time is counted in records, from 1."""
        self._clock_ms = clock_ms or count(1).__next__
        self._topics: dict[str, list[_Partition]] = {}
        self._groups: dict[str, _Group] = {}
        self._faults = {(fault.client_id, fault.at): fault for fault in faults}
        self._seen: dict[str, int] = {}

    def create_topic(self, name: str, partitions: int) -> None:
        """Raises ValueError when it exists."""
        if name in self._topics or partitions < 1:
            raise ValueError(f"topic {name!r} exists, or {partitions} partitions are too few")
        self._topics[name] = [_Partition() for _ in range(partitions)]

    def producer(self, client_id: str, *, queue_records: int = 100_000) -> "MemoryProducer":
        return MemoryProducer(self, client_id, queue_records)

    def consumer(
        self, group: str | None, client_id: str, *, reset: Literal["earliest", "latest"] = "earliest"
    ) -> "MemoryConsumer":
        return MemoryConsumer(self, group, client_id, reset)

    def inject(self, fault: Fault) -> None:
        """Adds to the script. Raises ValueError when that record has been passed or has a fault already."""
        if fault.at <= self._seen.get(fault.client_id, 0) or (fault.client_id, fault.at) in self._faults:
            raise ValueError(f"{fault} can no longer strike")
        self._faults[fault.client_id, fault.at] = fault

    def pending_faults(self) -> list[Fault]:
        """Faults that have not struck: a test whose script did not play out should say so."""
        return list(self._faults.values())

    def records(self, topic: str, partition: int | None = None) -> list[LogRecord]:
        """All records kept, by partition and offset."""
        partitions = self._partitions(topic)
        chosen = partitions if partition is None else partitions[partition : partition + 1]
        return [record for each in chosen for record in each.records]

    def append(
        self, topic: str, value: bytes | None, *, key: str | None = None, partition: int = 0, headers: Headers = ()
    ) -> int:
        """Stores a record as if a producer had delivered it; returns its offset."""
        stored = self._partition(TopicPartition(topic, partition))
        offset = stored.next_offset
        stored.records.append(
            LogRecord(
                topic, partition, offset, None if key is None else key.encode(), value, tuple(headers), self._clock_ms()
            )
        )
        return offset

    def delete_records(self, partition: TopicPartition, before_offset: int) -> None:
        """What retention does. Readers below `before_offset` go on by their reset policy."""
        stored = self._partition(partition)
        kept = max(0, min(before_offset, stored.next_offset) - stored.first_offset)
        del stored.records[:kept]
        stored.first_offset += kept

    def committed(self, group: str, partition: TopicPartition) -> Committed:
        return self._group(group).committed.get(partition, Committed(None))

    def _partitions(self, topic: str) -> list[_Partition]:
        try:
            return self._topics[topic]
        except KeyError:
            raise LogError(f"unknown topic {topic!r}", retriable=False) from None

    def _partition(self, partition: TopicPartition) -> _Partition:
        partitions = self._partitions(partition.topic)
        if not 0 <= partition.partition < len(partitions):
            raise LogError(f"unknown partition {partition}", retriable=False)
        return partitions[partition.partition]

    def _group(self, name: str) -> _Group:
        return self._groups.setdefault(name, _Group())

    def _next_fault(self, client_id: str) -> FaultKind | None:
        """The kind of fault that waits at the client's next record."""
        fault = self._faults.get((client_id, self._seen.get(client_id, 0) + 1))
        return None if fault is None else fault.kind

    def _take_fault(self, client_id: str) -> Fault:
        return self._faults.pop((client_id, self._seen.get(client_id, 0) + 1))

    def _passed_record(self, client_id: str) -> None:
        self._seen[client_id] = self._seen.get(client_id, 0) + 1

    def _rebalance(self, group: _Group) -> None:
        """Sticky and balanced per topic: members keep what they have up to their share, in order of joining."""
        group.generation += 1
        group.target = {}
        topics = {topic for member in group.members for topic in member._topics}
        for topic in sorted(topics):
            members = [member for member in group.members if topic in member._topics]
            partitions = [TopicPartition(topic, number) for number in range(len(self._topics.get(topic, ())))]
            share, extra = divmod(len(partitions), len(members))
            quota = {member: share + (order < extra) for order, member in enumerate(members)}
            unplaced = []
            for partition in partitions:
                holder = group.owner.get(partition)
                if holder in quota and quota[holder] > 0:
                    group.target[partition] = holder
                    quota[holder] -= 1
                else:
                    unplaced.append(partition)
            takers = (member for member, room in quota.items() for _ in range(room))
            group.target.update(zip(unplaced, takers, strict=True))

    def _leave(self, member: "MemoryConsumer") -> None:
        group = self._group(member._group_name)
        if member in group.members:
            group.members.remove(member)
            group.owner = {partition: owner for partition, owner in group.owner.items() if owner is not member}
            self._rebalance(group)


@dataclass(slots=True)
class _Queued:
    partition: TopicPartition
    key: str | None
    value: bytes | None
    headers: Headers
    on_delivery: OnDelivery | None
    fault: Fault | None


@dataclass(slots=True)
class _Report:
    partition: TopicPartition
    offset: int | None
    error: LogError | None
    on_delivery: OnDelivery | None
    polls_left: int


class MemoryProducer:
    """See `streams.log.port.LogProducer`. Records reach the log in `poll` and `flush`."""

    def __init__(self, log: MemoryLog, client_id: str, queue_records: int) -> None:
        self._log = log
        self._client_id = client_id
        self._queue_records = queue_records
        self._queue: deque[_Queued] = deque()
        self._reports: list[_Report] = []
        self._crashed = False
        self._keyless = count()

    def __len__(self) -> int:
        """Records whose delivery is outstanding."""
        return len(self._queue) + len(self._reports)

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
        self._require_life()
        if len(self) >= self._queue_records:
            raise ProducerQueueFull
        if len(value or b"") > MAX_RECORD_BYTES:
            raise RecordTooLarge(f"{len(value or b'')} bytes to {topic}")
        fault = None
        if self._log._next_fault(self._client_id) is not None:
            fault = self._log._take_fault(self._client_id)
            if fault.kind in (FaultKind.REBALANCE, FaultKind.LOST):
                raise ValueError(f"{fault} cannot strike a producer")
        self._log._passed_record(self._client_id)
        if fault is not None and fault.kind is FaultKind.CRASH:
            self.crash()
            raise Crashed(self._client_id)
        place = TopicPartition(topic, self._choose(topic, key) if partition is None else partition)
        self._queue.append(_Queued(place, key, value, tuple(headers), on_delivery, fault))

    def poll(self, timeout_s: float = 0.0) -> int:
        self._require_life()
        while self._queue:
            self._transmit(self._queue.popleft())
        due, held, waiting = [], [], set()
        for report in self._reports:
            if report.polls_left > 0 or report.partition in waiting:
                waiting.add(report.partition)
                report.polls_left -= 1
                held.append(report)
            else:
                due.append(report)
        self._reports = held
        unheard = None
        for report in due:
            if report.on_delivery is not None:
                report.on_delivery(report.offset, report.error)
            elif report.error is not None:
                unheard = report.error
        if unheard is not None:
            raise unheard
        return len(due)

    def flush(self, timeout_s: float) -> int:
        """Delayed reports are waited for, unless `timeout_s` is 0."""
        self.poll()
        while self._reports and timeout_s > 0:
            self.poll()
        return len(self)

    def crash(self) -> None:
        """SIGKILL: what was queued never existed, what was stored stays."""
        self._crashed = True
        self._queue.clear()
        self._reports.clear()

    def _require_life(self) -> None:
        if self._crashed:
            raise Crashed(self._client_id)

    def _choose(self, topic: str, key: str | None) -> int:
        partitions = len(self._log._topics.get(topic, ())) or 1
        if key is None:
            return next(self._keyless) % partitions
        return (murmur2(key.encode()) & 0x7FFFFFFF) % partitions

    def _transmit(self, queued: _Queued) -> None:
        kind = None if queued.fault is None else queued.fault.kind
        offset, error = None, None
        if kind is FaultKind.FAIL:
            error = LogError("delivery failed by script", retriable=True)
        else:
            place = queued.partition
            try:
                for _ in range(2 if kind is FaultKind.DUPLICATE else 1):
                    offset = self._log.append(
                        place.topic, queued.value, key=queued.key, partition=place.partition, headers=queued.headers
                    )
            except LogError as unknown:
                error = unknown
        polls = queued.fault.polls if queued.fault is not None and kind is FaultKind.DELAY else 0
        self._reports.append(_Report(queued.partition, offset, error, queued.on_delivery, polls))


class MemoryConsumer:
    """See `streams.log.port.LogConsumer`. `poll` never waits."""

    def __init__(self, log: MemoryLog, group: str | None, client_id: str, reset: Literal["earliest", "latest"]) -> None:
        self._log = log
        self._group_name = group or ""
        self._client_id = client_id
        self._reset = reset
        self._topics: tuple[str, ...] = ()
        self._positions: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._turn = 0
        self._redeliver: LogRecord | None = None
        self._dropped = False
        self._crashed = False
        self._closed = False
        self._on_assign: OnPartitions | None = None
        self._on_revoke: OnPartitions | None = None
        self._on_lost: OnPartitions | None = None

    def subscribe(
        self,
        topics: Sequence[str],
        *,
        on_assign: OnPartitions | None = None,
        on_revoke: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        self._require_life()
        self._require_group()
        self._topics = tuple(topics)
        self._on_assign, self._on_revoke, self._on_lost = on_assign, on_revoke, on_lost
        self._join()

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._require_life()
        self._positions = dict(positions)
        self._paused.clear()
        self._ends.clear()

    def poll(self, max_records: int, timeout_s: float) -> list[LogRecord]:
        self._require_life()
        for topic in self._topics:
            self._log._partitions(topic)
        self._follow_balance()
        records: list[LogRecord] = []
        while len(records) < max_records:
            record = self._redeliver or self._peek()
            if record is None:
                break
            fault = None
            if self._redeliver is None and (kind := self._log._next_fault(self._client_id)) is not None:
                if kind is not FaultKind.DUPLICATE and records:
                    break  # strikes at the next poll, before this record
                fault = self._log._take_fault(self._client_id)
                if fault.kind is not FaultKind.DUPLICATE:
                    self._strike(fault)
                    break
            if self._redeliver is None:
                self._log._passed_record(self._client_id)
                self._positions[record.source] = record.offset + 1
            self._redeliver = record if fault is not None else None
            records.append(record)
        return records

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._require_life()
        self._paused.update(self._require_owned(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._require_life()
        self._paused.difference_update(self._require_owned(partitions))

    def seek(self, position: TopicPartition, offset: int) -> None:
        """Raises LogError when it is not assigned."""
        self._require_life()
        self._require_owned([position])
        self._positions[position] = offset
        if self._redeliver is not None and self._redeliver.source == position:
            self._redeliver = None

    def commit(
        self, offsets: Mapping[TopicPartition, int], *, metadata: Mapping[TopicPartition, str] | None = None
    ) -> None:
        self._require_life()
        self._require_group()
        metadata = metadata or {}
        check_metadata(offsets, metadata)
        if self._dropped:
            raise LogError("commit: no longer a member of the group", retriable=False)
        if self._topics:
            self._require_owned(offsets)
        committed = self._log._group(self._group_name).committed
        for partition, offset in offsets.items():
            committed[partition] = Committed(offset, metadata.get(partition, ""))

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        self._require_life()
        self._require_group()
        return {partition: self._log.committed(self._group_name, partition) for partition in partitions}

    def assignment(self) -> list[TopicPartition]:
        return sorted(self._positions)

    def partitions(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in range(len(self._log._partitions(topic)))]

    def watermarks(self, partition: TopicPartition) -> tuple[int, int]:
        stored = self._log._partition(partition)
        return stored.first_offset, stored.next_offset

    def end_reached(self, partition: TopicPartition) -> int:
        self._require_no_group()
        return self._ends.get(partition, 0)

    def offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int:
        stored = self._log._partition(partition)
        later = (record.offset for record in stored.records if record.timestamp_ms >= timestamp_ms)
        return next(later, stored.next_offset)

    def close(self) -> None:
        if self._crashed or self._closed:
            return
        if self._topics and self._positions and not self._dropped:
            self._release(self.assignment(), self._on_revoke)
        self._closed = True
        self._positions.clear()
        self._log._leave(self)

    def crash(self) -> None:
        """SIGKILL, with the session timeout already over: the partitions are free, from the last commit."""
        self._crashed = True
        self._positions.clear()
        self._log._leave(self)

    def drop(self) -> None:
        """The group gives this member's partitions away while it believes that it holds them: a zombie."""
        self._dropped = True
        self._log._leave(self)

    def _require_life(self) -> None:
        if self._crashed:
            raise Crashed(self._client_id)
        if self._closed:
            raise LogError("the consumer is closed", retriable=False)

    def _require_group(self) -> None:
        if not self._group_name:
            raise LogError("this reader belongs to no group", retriable=False)

    def _require_no_group(self) -> None:
        if self._group_name:
            raise LogError("only independent readers are told of the end", retriable=False)

    def _require_owned(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        wanted = list(partitions)
        if foreign := [partition for partition in wanted if partition not in self._positions]:
            raise LogError(f"not assigned: {foreign}", retriable=False)
        return wanted

    def _join(self) -> None:
        group = self._log._group(self._group_name)
        if self not in group.members:
            group.members.append(self)
        self._log._rebalance(group)

    def _strike(self, fault: Fault) -> None:
        match fault.kind:
            case FaultKind.CRASH:
                self.crash()
                raise Crashed(self._client_id)
            case FaultKind.LOST:
                self.drop()
            case FaultKind.REBALANCE:
                self._release(self.assignment(), self._on_revoke)
                self._log._rebalance(self._log._group(self._group_name))
            case _:
                raise ValueError(f"{fault} cannot strike a consumer")

    def _follow_balance(self) -> None:
        """Gives up what the balance wants elsewhere, then takes what it wants here and nobody holds."""
        if not self._topics:
            return
        if self._dropped:
            lost = self.assignment()
            self._dropped = False
            self._release(lost, self._on_lost or self._on_revoke)
            self._join()
        group = self._log._group(self._group_name)
        if leaving := [p for p in self.assignment() if group.target.get(p) is not self]:
            self._release(leaving, self._on_revoke)
        arriving = sorted(
            p for p, member in group.target.items() if member is self and p not in group.owner
        )  # fmt: skip
        if arriving:
            for partition in arriving:
                group.owner[partition] = self
                committed = group.committed.get(partition, Committed(None)).offset
                self._positions[partition] = self._reset_offset(partition) if committed is None else committed
            if self._on_assign is not None:
                self._on_assign(arriving)

    def _release(self, partitions: Sequence[TopicPartition], tell: OnPartitions | None) -> None:
        try:
            if tell is not None and partitions:
                tell(partitions)
        finally:
            owner = self._log._group(self._group_name).owner
            for partition in partitions:
                self._positions.pop(partition, None)
                self._paused.discard(partition)
                if owner.get(partition) is self:
                    del owner[partition]
            if self._redeliver is not None and self._redeliver.source in partitions:
                self._redeliver = None

    def _reset_offset(self, partition: TopicPartition) -> int:
        stored = self._log._partition(partition)
        return stored.first_offset if self._reset == "earliest" else stored.next_offset

    def _peek(self) -> LogRecord | None:
        """The next record, taking partitions in turn."""
        for partition in self._in_turn():
            if partition in self._paused:
                continue
            stored = self._log._partition(partition)
            if not stored.first_offset <= self._positions[partition] <= stored.next_offset:
                self._positions[partition] = self._reset_offset(partition)
            at = self._positions[partition] - stored.first_offset
            if at < len(stored.records):
                return stored.records[at]
            self._ends[partition] = stored.next_offset
        return None

    def _in_turn(self) -> Iterator[TopicPartition]:
        partitions = self.assignment()
        self._turn += 1
        for step in range(len(partitions)):
            yield partitions[(self._turn + step) % len(partitions)]
