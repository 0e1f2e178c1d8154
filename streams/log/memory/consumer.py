"""The consumer of the log in memory."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Literal

from streams.log.memory.broker import Group, MemoryBroker
from streams.log.memory.faults import Crashed, Fault, FaultKind
from streams.log.port import Committed, LogError, LogRecord, OnPartitions, TopicPartition, check_metadata


class MemoryConsumer:
    """See `streams.log.port.LogConsumer`. `poll` never waits."""

    def __init__(
        self, log: MemoryBroker, group: str | None, client_id: str, reset: Literal["earliest", "latest"]
    ) -> None:
        self._log = log
        self._group_name = group or ""
        self._group: Group = log.group(self._group_name)
        self._client_id = client_id
        self._reset = reset
        self.topics: tuple[str, ...] = ()
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
        self.topics = tuple(topics)
        self._on_assign, self._on_revoke, self._on_lost = on_assign, on_revoke, on_lost
        self._join()

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._require_life()
        self._positions = dict(positions)
        self._paused.clear()
        self._ends.clear()

    def poll(self, max_records: int, timeout_s: float) -> list[LogRecord]:
        self._require_life()
        for topic in self.topics:
            self._log.partitions(topic)
        self._follow_balance()
        records: list[LogRecord] = []
        while len(records) < max_records:
            record = self._redeliver or self._peek()
            if record is None:
                break
            fault = None
            if self._redeliver is None and (kind := self._log.script.next(self._client_id)) is not None:
                if kind is not FaultKind.DUPLICATE and records:
                    break  # strikes at the next poll, before this record
                fault = self._log.script.take(self._client_id)
                if fault.kind is not FaultKind.DUPLICATE:
                    self._strike(fault)
                    break
            if self._redeliver is None:
                self._log.script.passed(self._client_id)
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
        outcome = self.start_commit(offsets, metadata=metadata)
        if not outcome.done():
            outcome.cancel()
            raise LogError("commit: the group's coordinator does not answer", retriable=True)
        outcome.result()

    def start_commit(
        self, offsets: Mapping[TopicPartition, int], *, metadata: Mapping[TopicPartition, str] | None = None
    ) -> Future[None]:
        self._require_life()
        self._require_group()
        metadata = metadata or {}
        check_metadata(offsets, metadata)
        if self._dropped:
            raise LogError("commit: no longer a member of the group", retriable=False)
        if self.topics:
            self._require_owned(offsets)
        committed = {place: Committed(offset, metadata.get(place, "")) for place, offset in offsets.items()}
        return self._log.commit(self._group, committed)

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        self._require_life()
        self._require_group()
        return {partition: self._log.committed(self._group_name, partition) for partition in partitions}

    def assignment(self) -> list[TopicPartition]:
        return sorted(self._positions)

    def partitions(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in range(len(self._log.partitions(topic)))]

    def watermarks(self, partition: TopicPartition) -> tuple[int, int]:
        stored = self._log.partition(partition)
        return stored.first_offset, stored.next_offset

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: self._log.partition(partition).next_offset for partition in partitions}

    def end_reached(self, partition: TopicPartition) -> int:
        self._require_no_group()
        return self._ends.get(partition, 0)

    def offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int:
        stored = self._log.partition(partition)
        later = (record.offset for record in stored.records if record.timestamp_ms >= timestamp_ms)
        return next(later, stored.next_offset)

    def close(self) -> None:
        if self._crashed or self._closed:
            return
        if self.topics and self._positions and not self._dropped:
            self._release(self.assignment(), self._on_revoke)
        self._closed = True
        self._positions.clear()
        self._log.leave(self, self._group)

    def crash(self) -> None:
        """SIGKILL, with the session timeout already over: the partitions are free, from the last commit."""
        self._crashed = True
        self._positions.clear()
        self._log.leave(self, self._group)

    def drop(self) -> None:
        """The group gives this member's partitions away while it believes that it holds them: a zombie."""
        self._dropped = True
        self._log.leave(self, self._group)

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
        if self not in self._group.members:
            self._group.members.append(self)
        self._log.balance(self._group)

    def _strike(self, fault: Fault) -> None:
        match fault.kind:
            case FaultKind.CRASH:
                self.crash()
                raise Crashed(self._client_id)
            case FaultKind.LOST:
                self.drop()
            case FaultKind.REBALANCE:
                self._release(self.assignment(), self._on_revoke)
                self._log.balance(self._group)
            case _:
                raise ValueError(f"{fault} cannot strike a consumer")

    def _follow_balance(self) -> None:
        """Gives up what the balance wants elsewhere, then takes what it wants here and nobody holds."""
        if not self.topics:
            return
        if self._dropped:
            lost = self.assignment()
            self._dropped = False
            self._release(lost, self._on_lost or self._on_revoke)
            self._join()
        group = self._group
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
            owner = self._group.owner
            for partition in partitions:
                self._positions.pop(partition, None)
                self._paused.discard(partition)
                if owner.get(partition) is self:
                    del owner[partition]
            if self._redeliver is not None and self._redeliver.source in partitions:
                self._redeliver = None

    def _reset_offset(self, partition: TopicPartition) -> int:
        stored = self._log.partition(partition)
        return stored.first_offset if self._reset == "earliest" else stored.next_offset

    def _peek(self) -> LogRecord | None:
        """The next record, taking partitions in turn."""
        for partition in self._in_turn():
            if partition in self._paused:
                continue
            stored = self._log.partition(partition)
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
