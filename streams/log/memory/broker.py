"""The broker in memory: topics, groups and who owns what. Its clients are beside it."""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple, Protocol

from streams.log.memory.faults import Fault, FaultScript
from streams.log.port import Committed, Headers, LogError, LogRecord, TopicPartition


class Member(Protocol):
    """A member of a group, as far as the balance is concerned."""

    @property
    def topics(self) -> tuple[str, ...]: ...


@dataclass(slots=True)
class StoredPartition:
    first_offset: int = 0
    records: list[LogRecord] = field(default_factory=list)

    @property
    def next_offset(self) -> int:
        return self.first_offset + len(self.records)


@dataclass(slots=True)
class Group:
    """`target` is what the balance wants; `owner` is what members hold until they have released it."""

    generation: int = 0
    members: list[Member] = field(default_factory=list)
    target: dict[TopicPartition, Member] = field(default_factory=dict)
    owner: dict[TopicPartition, Member] = field(default_factory=dict)
    committed: dict[TopicPartition, Committed] = field(default_factory=dict)


class _Commit(NamedTuple):
    group: Group
    generation: int
    positions: dict[TopicPartition, Committed]
    outcome: Future[None]


class MemoryBroker:
    """What the clients of one log in memory share."""

    def __init__(self, clock_ms: Callable[[], int] | None = None, faults: Iterable[Fault] = ()) -> None:
        """Without `clock_ms` time is counted in records, from 1."""
        self._clock_ms = clock_ms or count(1).__next__
        self._topics: dict[str, list[StoredPartition]] = {}
        self._groups: dict[str, Group] = {}
        self._coordinator_is_away = False
        self._commits: deque[_Commit] = deque()
        self.script = FaultScript(faults)

    def create_topic(self, name: str, partitions: int) -> None:
        """Raises ValueError when it exists."""
        if name in self._topics or partitions < 1:
            raise ValueError(f"topic {name!r} exists, or {partitions} partitions are too few")
        self._topics[name] = [StoredPartition() for _ in range(partitions)]

    def records(self, topic: str, partition: int | None = None) -> list[LogRecord]:
        """All records kept, by partition and offset."""
        partitions = self.partitions(topic)
        chosen = partitions if partition is None else partitions[partition : partition + 1]
        return [record for each in chosen for record in each.records]

    def append(
        self, topic: str, value: bytes | None, *, key: str | None = None, partition: int = 0, headers: Headers = ()
    ) -> int:
        """Stores a record as if a producer had delivered it; returns its offset."""
        stored = self.partition(TopicPartition(topic, partition))
        offset = stored.next_offset
        stored.records.append(
            LogRecord(
                topic, partition, offset, None if key is None else key.encode(), value, tuple(headers), self._clock_ms()
            )
        )
        return offset

    def delete_records(self, partition: TopicPartition, before_offset: int) -> None:
        """What retention does. Readers below `before_offset` go on by their reset policy."""
        stored = self.partition(partition)
        kept = max(0, min(before_offset, stored.next_offset) - stored.first_offset)
        del stored.records[:kept]
        stored.first_offset += kept

    def lose_end(self, partition: TopicPartition, end_offset: int) -> None:
        """What a power cut does to a log with one copy. What is written next takes the offsets of what was lost."""
        stored = self.partition(partition)
        del stored.records[max(0, end_offset - stored.first_offset) :]

    def committed(self, group: str, partition: TopicPartition) -> Committed:
        return self.group(group).committed.get(partition, Committed(None))

    def commit(self, group: Group, committed: dict[TopicPartition, Committed]) -> Future[None]:
        outcome: Future[None] = Future()
        self._commits.append(_Commit(group, group.generation, committed, outcome))
        if not self._coordinator_is_away:
            self.coordinator_returns()
        return outcome

    def coordinator_leaves(self) -> None:
        """Commits stay undecided from now on; records are read and written as before."""
        self._coordinator_is_away = True

    def coordinator_returns(self) -> None:
        """It makes the commits that waited for it, in order, but for those that were cancelled, and refuses those that
        a balance came after.
        """
        self._coordinator_is_away = False
        while self._commits:
            group, generation, positions, outcome = self._commits.popleft()
            if not outcome.set_running_or_notify_cancel():
                continue
            if generation != group.generation:
                outcome.set_exception(LogError("commit: a balance began", retriable=True))
                continue
            group.committed.update(positions)
            outcome.set_result(None)

    def partition_count(self, topic: str) -> int:
        """0 when there is no such topic."""
        return len(self._topics.get(topic, ()))

    def partitions(self, topic: str) -> list[StoredPartition]:
        try:
            return self._topics[topic]
        except KeyError:
            raise LogError(f"unknown topic {topic!r}", retriable=False) from None

    def partition(self, partition: TopicPartition) -> StoredPartition:
        partitions = self.partitions(partition.topic)
        if not 0 <= partition.partition < len(partitions):
            raise LogError(f"unknown partition {partition}", retriable=False)
        return partitions[partition.partition]

    def group(self, name: str) -> Group:
        return self._groups.setdefault(name, Group())

    def balance(self, group: Group) -> None:
        """Sticky and balanced per topic: members keep what they have up to their share, in order of joining."""
        group.generation += 1
        group.target = {}
        topics = {topic for member in group.members for topic in member.topics}
        for topic in sorted(topics):
            members = [member for member in group.members if topic in member.topics]
            partitions = [TopicPartition(topic, number) for number in range(self.partition_count(topic))]
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

    def leave(self, member: Member, group: Group) -> None:
        if member in group.members:
            group.members.remove(member)
            group.owner = {partition: owner for partition, owner in group.owner.items() if owner is not member}
            self.balance(group)
